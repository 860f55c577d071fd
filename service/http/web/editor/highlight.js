// Colours for a rule file: YAML outside, the rule language inside `match`, `emit`, `let` and `having` texts.

import { StreamLanguage } from "@codemirror/language";

const WORDS = new Set(
  ("sequence aggregate session window by with where as until having over every unordered next or and not in like regex " +
    "any maxspan overlap skip runs within after for gap max size repeat latest all past_last to_next none").split(" "),
);
const ATOMS = new Set(["true", "false", "null"]);
const DURATION = /^\d+(?:\.\d+)?(?:ms|s|m|h|d)\b/;
const NUMBER = /^\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/;
const NAME = /^[A-Za-z_][\w]*(?:\.[\w@]+)*/;

function expression(stream, state) {
  if (stream.match(/^"""/)) return rawText(stream, state);
  if (stream.match(/^"(?:[^"\\]|\\.)*"?/)) return "string";
  if (stream.match(/^\/\/.*/)) return "comment";
  if (stream.match(DURATION)) return "number.special";
  if (stream.match(NUMBER)) return "number";
  if (stream.match(/^\$\w+/)) return "variableName.special";
  if (stream.match(/^@\w+/)) return "atom";
  if (stream.match(/^(?:==|!=|<=|>=|[<>+\-*/%=:])/)) return "operator";
  if (stream.match(/^[!?](?=\[)/)) return "controlOperator";
  if (stream.eat("[")) {
    state.afterBracket = true;
    return "squareBracket";
  }
  if (stream.match(/^[\](){},]/)) return "punctuation";
  const found = stream.match(NAME);
  if (found) return name(found[0], stream, state);
  stream.next();
  return null;
}

function name(word, stream, state) {
  const type = state.afterBracket;
  state.afterBracket = false;
  if (type) return "typeName";
  if (ATOMS.has(word)) return "atom";
  if (stream.match(/^\s*\(/, false) && !WORDS.has(word)) return "variableName.function";
  if (WORDS.has(word)) return "keyword";
  return word.includes(".") ? "propertyName.special" : "variableName";
}

function rawText(stream, state) {
  state.raw = !stream.match(/^.*?"""/);
  if (state.raw) stream.skipToEnd();
  return "string";
}

// A block text (`match: |`) goes on as long as lines are indented deeper than its key.
function yaml(stream, state) {
  if (stream.sol()) {
    state.value = false;
    state.indent = stream.indentation();
  }
  if (stream.eatSpace()) return null;
  if (stream.match(/^#.*/)) return "comment";
  if (stream.match(/^- /)) return "punctuation";
  if (!state.value) {
    const key = stream.match(/^[\w-]+(?=\s*:(?:\s|$))/);
    if (key) {
      state.key = key[0];
      return state.indent === 0 ? "propertyName" : "attributeName";
    }
    if (stream.match(/^:\s*[|>][-+]?\s*$/)) {
      state.block = state.indent;
      state.inMatch = state.key === "match";
      return "punctuation";
    }
    if (stream.eat(":")) {
      state.value = true;
      return "punctuation";
    }
  }
  if (inEmit(state) && !stream.match(/^["']/, false)) return expression(stream, state);
  if (stream.match(/^"(?:[^"\\]|\\.)*"?/) || stream.match(/^'(?:[^']|'')*'?/)) return "string";
  if (stream.match(DURATION)) return "number.special";
  if (stream.match(NUMBER)) return "number";
  if (stream.match(/^(?:true|false|null)\b/)) return "atom";
  if (stream.match(/^[{}[\],]/)) return "punctuation";
  if (!stream.match(/^[^\s#,{}[\]]+/)) stream.next();
  return null;
}

const inEmit = (state) => state.section === "emit" && state.indent > 0 && state.value;

export const ruleLanguage = StreamLanguage.define({
  name: "samovar-rule",
  startState: () => ({
    block: -1,
    inMatch: false,
    raw: false,
    value: false,
    indent: 0,
    key: "",
    section: "",
    afterBracket: false,
  }),
  token(stream, state) {
    if (stream.sol()) {
      state.afterBracket = false;
      const top = stream.string.match(/^([\w-]+)\s*:/);
      if (top) state.section = top[1];
      if (state.block >= 0 && stream.string.trim() && stream.indentation() <= state.block) state.block = -1;
    }
    if (state.raw) {
      state.raw = !stream.match(/^.*?"""/);
      if (state.raw) stream.skipToEnd();
      return "string";
    }
    if (state.block >= 0) {
      if (stream.eatSpace()) return null;
      if (state.inMatch) return expression(stream, state);
      stream.skipToEnd();
      return "string";
    }
    return yaml(stream, state);
  },
  languageData: { commentTokens: { line: "#" }, closeBrackets: { brackets: ["(", "[", "{", '"'] } },
});
