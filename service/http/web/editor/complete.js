// What may be written at the cursor: event types, their fields, functions, parameters, lists, steps, and YAML keys.
// `words` is what the service knows of its streams: {types, functions, keywords, params, lists, keys}.

const HEADER = /^(\w[\w-]*)\s*:/;

export function completions(words) {
  return (context) => {
    const before = context.state.sliceDoc(0, context.pos);
    const line = context.state.doc.lineAt(context.pos);
    const here = line.text.slice(0, context.pos - line.from);
    if (/^[\w-]*$/.test(here)) return keys(context, words);
    if (/(^|\s)#[^"]*$/.test(here)) return null;
    const section = sectionOf(before);
    if (section !== "match" && section !== "emit" && section !== "let" && section !== "message") return null;
    return inExpression(context, words, before, section);
  };
}

function keys(context, words) {
  const word = context.matchBefore(/[\w-]*/);
  if (!context.explicit && word.from === word.to) return null;
  const options = (words.keys || []).map((key) => ({ label: key, apply: `${key}: `, type: "property" }));
  return { from: word.from, options, validFor: /^[\w-]*$/ };
}

function sectionOf(before) {
  const lines = before.split("\n");
  for (let at = lines.length - 1; at >= 0; at--) {
    const found = lines[at].match(HEADER);
    if (found) return found[1];
  }
  return "";
}

function inExpression(context, words, before, section) {
  const dollar = context.matchBefore(/\$\w*/);
  if (dollar) return { from: dollar.from + 1, options: dollars(words, context.state.doc.toString()), validFor: /^\w*$/ };
  const bracket = context.matchBefore(/\[\s*\w*/);
  if (bracket && section === "match" && !/\bin\s*\[\s*\w*$/.test(before)) {
    const from = bracket.from + bracket.text.match(/^\[\s*/)[0].length;
    return { from, options: [...types(words), option("any", "type", "any event")], validFor: /^\w*$/ };
  }
  const steps = stepsOf(context.state.doc.toString());
  const dotted = context.matchBefore(/\b\w+\.[\w@]*/);
  if (dotted) {
    const [head] = dotted.text.split(".");
    const named = fieldsOf(words, steps.get(head));
    if (named.length === 0) return null;
    return { from: dotted.from + head.length + 1, options: [...named, option("@time", "constant", "epoch ms")] };
  }
  const word = context.matchBefore(/[@\w]+/);
  if (!word && !context.explicit) return null;
  const open = before.slice(before.lastIndexOf("[") + 1);
  const type = before.lastIndexOf("[") > before.lastIndexOf("]") ? (open.match(/^\s*(\w+)/) || [])[1] : null;
  const options = [
    ...fieldsOf(words, type),
    ...[...steps.keys()].map((step) => option(step, "variable", "step")),
    ...functions(words),
    ...keywords(words),
    option("@time", "constant", "event time, epoch ms"),
    option("@type", "constant", "event type"),
  ];
  return { from: word ? word.from : context.pos, options, validFor: /^[@\w]*$/ };
}

const option = (label, type, detail, boost = 0) => ({ label, type, detail, boost });

const types = (words) =>
  Object.entries(words.types || {}).map(([name, fields]) => option(name, "type", `${Object.keys(fields).length} fields`));

function fieldsOf(words, type) {
  const all = words.types || {};
  const chosen = type && all[type] ? [[type, all[type]]] : Object.entries(all);
  const found = new Map();
  for (const [, fields] of chosen) for (const [field, kind] of Object.entries(fields)) found.set(field, kind);
  return [...found].map(([field, kind]) => option(field, "property", String(kind), 2));
}

const functions = (words) =>
  (words.functions || []).map((each) => ({
    label: each.name,
    type: "function",
    detail: each.result || "",
    info: each.example || each.signature || undefined,
    apply: `${each.name}(`,
  }));

const keywords = (words) => (words.keywords || []).map((word) => option(word, "keyword", "", -1));

function dollars(words, text) {
  const own = [...text.matchAll(/^(params|lists)\s*:\s*\{([^}]*)\}/gm)].flatMap(([, , body]) =>
    [...body.matchAll(/(\w+)\s*:/g)].map(([, name]) => name),
  );
  const known = [...Object.keys(words.params || {}), ...Object.keys(words.lists || {})];
  return [...new Set([...own, ...known])].map((name) => option(name, "variable", "parameter or list"));
}

// Names given to steps, each with the event type of its bracket.
function stepsOf(text) {
  const found = new Map();
  for (const [, type, name] of text.matchAll(/\[\s*(\w+)[^\]]*\][^[\n]*?\bas\s+(\w+)/g)) found.set(name, type);
  return found;
}
