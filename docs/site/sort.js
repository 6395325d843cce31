// A click on a table's heading sorts its rows by that column, a second one in descending order: numbers as numbers.
document.addEventListener("click", ({ target }) => {
  const heading = target.closest?.("table:not([class]) th");
  if (!heading) return;
  const body = heading.closest("table").tBodies[0], up = heading.getAttribute("aria-sort") !== "ascending";
  const text = row => row.cells[heading.cellIndex].textContent.trim();
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const order = (a, b) => (isNaN(parseFloat(a)) || isNaN(parseFloat(b)) ? compare(a, b) : parseFloat(a) - parseFloat(b));
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * order(text(a), text(b))));
});
