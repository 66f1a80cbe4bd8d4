// What is on the page, and what changes its colours.

for (const part of document.querySelectorAll(".scripted")) part.hidden = false;
startTable();
if (POLICIES.length) {
  startScatter();
  startLines();
} else {
  document.querySelector(".charts").hidden = true;
}
const shown = listed(REPORT.stories).filter(Boolean);
if (shown.length) {
  const stories = new Stories(shown);
  const repaint = () => stories.repaint();
  repaint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  for (const [event, isPrinting] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      document.documentElement.classList.toggle("printing", isPrinting);
      repaint();
    });
  }
} else {
  byId("stories").hidden = true;
}
