// The rule editor: CodeMirror where it was bundled, else a plain text field that marks the same errors.

import { h, put } from "/dom.js";

export async function makeEditor(options) {
  try {
    const { createEditor } = await import("/_editor.js");
    return createEditor(options);
  } catch (fault) {
    return plainEditor(options, fault);
  }
}

// Lines with an error are marked at the side; the list of findings below says the rest.
function plainEditor({ parent, text, label, onChange, readOnly = false }) {
  const lines = h("div", { class: "plain-lines", "aria-hidden": "true" });
  const area = h("textarea", { "aria-label": label || "Rule text", spellcheck: "false", wrap: "off", readonly: readOnly, autocapitalize: "off", autocomplete: "off" });
  let marks = new Map();
  area.value = text;
  const number = () => put(lines, area.value.split("\n").map((_, at) => h("span", { class: marks.get(at + 1) || null }, String(at + 1))));
  area.addEventListener("input", () => {
    number();
    onChange(area.value);
  });
  area.addEventListener("scroll", () => (lines.scrollTop = area.scrollTop));
  parent.replaceChildren(h("div", { class: "plain" }, lines, area));
  number();
  return {
    kind: "plain",
    text: () => area.value,
    setText(next) {
      area.value = next;
      number();
      onChange(next);
    },
    setWords() {},
    setReadOnly: (on) => (area.readOnly = on),
    setFindings(findings) {
      marks = new Map([...findings].reverse().map((each) => [each.line, each.level]));
      number();
    },
    goTo(line, column = 1) {
      const before = area.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
      area.focus();
      area.setSelectionRange(before + column - 1, before + column - 1);
    },
    focus: () => area.focus(),
    destroy() {},
  };
}
