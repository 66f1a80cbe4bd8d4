// The table is there already; it becomes sortable.

function startTable() {
  const table = byId("figures");
  const [body] = table.tBodies;
  [...body.rows].forEach((row, index) => row.cells[0].prepend(swatch(index)));
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = el("button", { type: "button" }, heading.textContent);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const last = heading.getAttribute("aria-sort");
      const direction = last ? (last === "ascending" ? "descending" : "ascending") : heading.dataset.first ?? "ascending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", direction);
      sortRows(body, column, direction === "ascending" ? 1 : -1);
    });
  });
}

/** What has no value comes last, either way. */
function sortRows(body, column, sign) {
  const keyed = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  keyed.sort((one, other) => {
    if (one.key === null || other.key === null) return (one.key === null) - (other.key === null);
    return sign * (typeof one.key === "number" ? one.key - other.key : one.key.localeCompare(other.key, "en"));
  });
  body.append(...keyed.map(({ row }) => row));
}

function keyOf(cell) {
  if (cell.tagName === "TH") return cell.textContent;
  return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
}
