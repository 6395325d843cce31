// Tasks: a typed problem → symbols in the model's order, T(n), and the right answer.
// A parsed problem: { prompt, answer: arrays of symbols; rounds: T(n); slots: room for any answer; columns?: digit pairs }.

class Refused extends Error {} // a message of one line for the reader

const reversed = (list) => [...list].reverse();
const bitLength = (n) => Math.max(1, n.toString(2).length);

/** The symbols of what was typed. */
function symbolsOf(task, text) {
  const symbols = [...text.replace(/\s/g, "")];
  if (!symbols.length) throw new Refused(`The problem is empty. Its symbols are: ${task.symbols.join(" ")}`);
  const foreign = symbols.find((symbol) => !task.symbols.includes(symbol));
  if (foreign !== undefined) throw new Refused(`“${foreign}” is not one of the symbols: ${task.symbols.join(" ")}`);
  return symbols;
}

/** The symbols before and after a sign, as arrays. */
function aroundSign(task, text, sign, what) {
  const symbols = symbolsOf(task, text);
  const at = symbols.indexOf(sign);
  if (at < 1 || at !== symbols.lastIndexOf(sign) || at === symbols.length - 1) {
    throw new Refused(`A problem is two ${what} and one “${sign}” between them, for example ${task.example}`);
  }
  return [symbols.slice(0, at), symbols.slice(at + 1)];
}

/** Two numbers around a sign, most significant digit first. */
function numbersOf(task, text, sign) {
  return aroundSign(task, text, sign, "numbers").map((digits) => (task.leading_zeros ? digits : stripped(digits)));
}

function stripped(digits) {
  const first = digits.findIndex((digit) => digit !== "0");
  return first < 0 ? ["0"] : digits.slice(first);
}

/** The digits of a number in a base, least significant first. */
function digitsOf(number, base) {
  const found = [];
  for (let rest = number; rest > 0n || !found.length; rest /= base) found.push(String(rest % base));
  return found;
}

const valueOf = (digits, base) => digits.reduce((sum, digit) => sum * base + BigInt(digit), 0n);
const inOrder = (least, order) => (order === "most" ? reversed(least) : [...least]);
const read = (answer, order) => stripped(order === "most" ? answer : reversed(answer)).join("");

const TASKS = {
  Parity: {
    parse(task, text) {
      const prompt = symbolsOf(task, text);
      const ones = prompt.filter((bit) => bit === "1").length;
      return { prompt, answer: [String(ones % 2)], rounds: prompt.length, slots: 1 };
    },
  },
  Copy: {
    parse(task, text) {
      const prompt = symbolsOf(task, text);
      return { prompt, answer: [...prompt], rounds: prompt.length, slots: prompt.length };
    },
  },
  FlippedCopy: {
    parse(task, text) {
      const prompt = symbolsOf(task, text);
      const odd = prompt.filter((bit) => bit === "1").length % 2;
      const answer = prompt.map((bit) => String(Number(bit) ^ odd));
      return { prompt, answer, rounds: 2 * prompt.length, slots: prompt.length };
    },
  },
  BitwiseOr: {
    parse(task, text) {
      const [first, second] = aroundSign(task, text, "|", "vectors of bits");
      const slots = Math.max(first.length, second.length);
      const answer = Array.from({ length: slots }, (_, i) => (first[i] === "1" || second[i] === "1" ? "1" : "0"));
      return { prompt: [...first, "|", ...second], answer, rounds: slots, slots };
    },
  },
  BinarySum: {
    parse(task, text) {
      const prompt = symbolsOf(task, text);
      const ones = prompt.filter((bit) => bit === "1").length;
      return { prompt, answer: digitsOf(BigInt(ones), 2n), rounds: prompt.length, slots: bitLength(prompt.length) };
    },
    format: (task, answer) => reversed(answer).join(""),
  },
  UniqueSet: {
    parse(task, text) {
      const prompt = symbolsOf(task, text);
      const slots = Math.min(prompt.length, task.alphabet);
      return { prompt, answer: [...new Set(prompt)], rounds: prompt.length, slots };
    },
  },
  Addition: {
    parse(task, text) {
      const base = BigInt(task.base);
      let numbers = numbersOf(task, text, "+");
      const width = Math.max(...numbers.map((digits) => digits.length));
      const padded = numbers.map((digits) => [...Array(width - digits.length).fill("0"), ...digits]);
      if (task.equal_lengths) numbers = padded;
      const sum = digitsOf(valueOf(numbers[0], base) + valueOf(numbers[1], base), base);
      while (task.leading_zeros && sum.length < width + 1) sum.push("0");
      const [first, second] = numbers.map((digits) => inOrder(reversed(digits), task.order));
      const columns = reversed(padded[0]).map((digit, i) => [digit, padded[1][width - 1 - i]]);
      return {
        prompt: [...first, "+", ...second], answer: inOrder(sum, task.order), rounds: width, slots: width + 1, columns,
      };
    },
    format: (task, answer) => read(answer, task.order),
  },
  Multiplication: {
    parse(task, text) {
      const base = BigInt(task.base);
      const numbers = numbersOf(task, text, "*");
      const [n, m] = numbers.map((digits) => digits.length);
      const product = digitsOf(valueOf(numbers[0], base) * valueOf(numbers[1], base), base);
      while (task.leading_zeros && product.length < n + m) product.push("0");
      const [first, second] = numbers.map((digits) => inOrder(reversed(digits), task.order));
      return {
        prompt: [...first, "*", ...second], answer: inOrder(product, task.product), rounds: n * m, slots: n + m,
      };
    },
    format: (task, answer) => read(answer, task.product),
  },
  Sorting: {
    parse(task, text) {
      const listed = text.replace(/\s/g, "").split(",").map((part) => part.match(/^([A-Za-z]):([0-9]+)$/));
      const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
      const start = letters.indexOf(listed[0]?.[1]);
      const labels = letters.slice(start) + letters.slice(0, start);
      if (listed.length > letters.length || listed.some((part, place) => part?.[1] !== labels[place])) {
        throw new Refused(`A problem is numbers, labelled with consecutive letters, for example ${task.example}`);
      }
      const numbers = listed.map(([, label, digits]) => ({ label, digits: stripped([...digits]) }));
      const ranked = [...numbers].sort((a, b) => Number(valueOf(a.digits, 10n) - valueOf(b.digits, 10n))); // in place if equal
      const written = ({ label, digits }) => [",", label, ":", ...inOrder(reversed(digits), task.order)];
      return {
        prompt: numbers.flatMap(written).slice(1), answer: ranked.flatMap(({ label }) => [",", label]).slice(1),
        rounds: numbers.length, slots: 2 * numbers.length - 1,
      };
    },
  },
};

/** Parse a typed problem of a task. Throws Refused, with a message of one line, if it is invalid. */
const parseProblem = (task, text) => TASKS[task.kind].parse(task, text);

/** An answer as text; symbols that form no answer of the task are joined unchanged. */
function formatAnswer(task, answer) {
  const own = answer.length && answer.every((symbol) => task.symbols.includes(symbol));
  return own && TASKS[task.kind].format ? TASKS[task.kind].format(task, answer) : answer.join("");
}
