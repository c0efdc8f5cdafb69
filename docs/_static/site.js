// Copy buttons for commands and code, and a label for what they print.

const CODE = ".highlight-bash, .highlight-python, .highlight-yaml, .highlight-json";

function addCopyButton(block) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").innerText.trimEnd());
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  block.append(button);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(CODE)) {
    addCopyButton(block);
    const next = block.nextElementSibling;
    if (next?.matches(".highlight-default")) next.classList.add("printed");
  }
});
