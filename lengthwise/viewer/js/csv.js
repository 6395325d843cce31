// Show the page's tables, and save them as CSV.

const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
const csvOf = ({ columns, rows }) => [columns, ...rows].map((row) => row.map((cell) => quoted(String(cell ?? ""))).join(",")).join("\n") + "\n";

/** Let the browser save a text as a file. */
function download(name, text, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const SHOWN = 200; // rows of a table that are shown; CSV has all

/** A table to open, with a button that saves it. */
function tableOf(name, about, table) {
  const { columns, rows } = table, body = el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `table ${name}` });
  const save = el("button", { type: "button", onclick: () => download(`${name}.csv`, csvOf(table), "text/csv") }, `Save ${name}.csv`);
  const fill = () => {
    if (body.firstChild) return;
    const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column.replaceAll("_", " "))));
    const lines = rows.slice(0, SHOWN).map((row) => el("tr", {}, ...row.map((cell) => el("td", { class: typeof cell === "number" ? "number" : null }, shownCell(cell)))));
    body.append(el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines)));
    if (rows.length > SHOWN) body.append(el("p", { class: "soft" }, `The first ${SHOWN} of ${rows.length} rows; the file has all.`));
  };
  const count = `${rows.length.toLocaleString("en")} row${rows.length === 1 ? "" : "s"}`;
  return el("details", { id: `table-${name}`, ontoggle: fill }, el("summary", {}, el("strong", {}, name), ` ${about}, ${count}`), save, body);
}

const shownCell = (cell) => (cell === null ? "" : typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(5))) : String(cell));
