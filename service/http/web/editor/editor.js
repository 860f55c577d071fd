// The rule editor. One function is offered to the pages; all else of CodeMirror stays in here.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  keymap,
  lineNumbers,
  rectangularSelection,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

import { completions } from "./complete.js";
import { ruleLanguage } from "./highlight.js";

// Colours are the page's own, so that both themes hold here too.
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--code-keyword)", fontWeight: "600" },
  { tag: tags.typeName, color: "var(--code-type)", fontWeight: "600" },
  { tag: tags.propertyName, color: "var(--code-key)", fontWeight: "600" },
  { tag: tags.attributeName, color: "var(--code-key)" },
  { tag: tags.function(tags.variableName), color: "var(--code-function)" },
  { tag: tags.special(tags.variableName), color: "var(--code-param)" },
  { tag: tags.special(tags.propertyName), color: "var(--code-step)" },
  { tag: tags.variableName, color: "var(--code-text)" },
  { tag: [tags.number, tags.special(tags.number)], color: "var(--code-number)" },
  { tag: tags.string, color: "var(--code-string)" },
  { tag: tags.atom, color: "var(--code-number)" },
  { tag: tags.controlOperator, color: "var(--bad)", fontWeight: "700" },
  { tag: [tags.operator, tags.punctuation, tags.squareBracket], color: "var(--code-punctuation)" },
  { tag: tags.comment, color: "var(--code-comment)", fontStyle: "italic" },
]);

const frame = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", backgroundColor: "var(--code-page)", color: "var(--code-text)" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { padding: "10px 0", caretColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--code-page)", color: "var(--faint)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--code-line)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    background: "var(--code-selection)",
  },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { background: "var(--code-selection)", outline: "none" },
  ".cm-selectionMatch": { background: "var(--code-selection)" },
  "&.cm-focused": { outline: "none" },
  ".cm-tooltip": {
    background: "var(--raised)",
    color: "var(--ink)",
    border: "1px solid var(--edge)",
    borderRadius: "8px",
    boxShadow: "var(--shadow)",
    overflow: "hidden",
  },
  ".cm-tooltip-autocomplete ul li": { padding: "3px 10px", fontFamily: "var(--mono)", fontSize: "12.5px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal", marginLeft: "1.2em" },
  ".cm-tooltip-autocomplete ul li[aria-selected] .cm-completionDetail": { color: "inherit" },
  ".cm-completionInfo": { padding: "6px 10px", fontFamily: "var(--mono)", fontSize: "12px" },
  ".cm-diagnostic": { padding: "6px 10px", borderLeftWidth: "3px", maxWidth: "60ch", whiteSpace: "pre-wrap" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-diagnostic-info": { borderLeftColor: "var(--accent)" },
  ".cm-lintRange": { backgroundImage: "none", textUnderlineOffset: "3px" },
  ".cm-lintRange-error": { textDecoration: "wavy underline var(--bad)", backgroundColor: "var(--bad-soft)" },
  ".cm-lintRange-warning": { textDecoration: "wavy underline var(--warn)" },
  ".cm-lintRange-info": { textDecoration: "dotted underline var(--accent)" },
  ".cm-lint-marker": { width: "0.7em", height: "0.7em", content: "''", borderRadius: "50%", marginTop: "5px" },
  ".cm-lint-marker-error": { content: "''", background: "var(--bad)" },
  ".cm-lint-marker-warning": { content: "''", background: "var(--warn)" },
  ".cm-lint-marker-info": { content: "''", background: "var(--accent)" },
  ".cm-panels": { background: "var(--raised)", color: "var(--ink)", borderColor: "var(--edge)" },
});

// It lives in a shadow root: there CodeMirror's styles are constructed sheets, which the pages' strict policy allows.
// A tab leaves the field after Escape, as CodeMirror offers it: the keyboard is never trapped.
export function createEditor({ parent, text, label, onChange, words, readOnly = false }) {
  const locked = new Compartment();
  const completing = new Compartment();
  const root = parent.shadowRoot || parent.attachShadow({ mode: "open" });
  // It fills its place and scrolls inside: a long rule must not make the page long.
  const holder = document.createElement("div");
  holder.style.cssText = "position: absolute; inset: 0";
  root.replaceChildren(holder);
  const view = new EditorView({
    root,
    parent: holder,
    doc: text,
    extensions: [
      lineNumbers(),
      lintGutter(),
      history(),
      drawSelection(),
      rectangularSelection(),
      bracketMatching(),
      closeBrackets(),
      highlightActiveLine(),
      highlightActiveLineGutter(),
      highlightSelectionMatches(),
      search({ top: true }),
      indentUnit.of("  "),
      ruleLanguage,
      syntaxHighlighting(colours),
      frame,
      completing.of(autocompletion({ override: [completions(words || {})], icons: false })),
      locked.of(EditorState.readOnly.of(readOnly)),
      EditorView.contentAttributes.of({ "aria-label": label || "Rule text", spellcheck: "false" }),
      keymap.of([
        ...closeBracketsKeymap,
        ...defaultKeymap,
        ...searchKeymap,
        ...historyKeymap,
        ...completionKeymap,
        ...lintKeymap,
        indentWithTab,
      ]),
      EditorView.updateListener.of((update) => update.docChanged && onChange && onChange(update.state.doc.toString())),
    ],
  });
  return {
    kind: "codemirror",
    text: () => view.state.doc.toString(),
    setText: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    setWords: (next) =>
      view.dispatch({ effects: completing.reconfigure(autocompletion({ override: [completions(next)], icons: false })) }),
    setReadOnly: (on) => view.dispatch({ effects: locked.reconfigure(EditorState.readOnly.of(on)) }),
    setFindings: (findings) => view.dispatch(setDiagnostics(view.state, findings.map((each) => diagnostic(view, each)))),
    goTo(line, column = 1) {
      const at = place(view, line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}

function place(view, line, column) {
  const found = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines)));
  return Math.min(found.to, found.from + Math.max(0, column - 1));
}

function diagnostic(view, finding) {
  let from = place(view, finding.line, finding.column);
  let to = Math.max(from, place(view, finding.end_line || finding.line, finding.end_column || finding.column));
  if (from === to) {
    // An empty place, as the end of a line, is shown on the character next to it.
    const line = view.state.doc.lineAt(from);
    if (to < line.to) to += 1;
    else if (from > line.from) from -= 1;
  }
  const more = [finding.expected && `expected: ${finding.expected}`, finding.hint].filter(Boolean);
  return { from, to, severity: finding.level, message: [finding.message, ...more].join("\n") };
}
