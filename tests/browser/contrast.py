"""How well texts stand out from their ground, measured in the page as WCAG 2 does it: 4.5 to 1, large ones 3 to 1."""

from __future__ import annotations

from playwright.sync_api import Page

# Colours may come as color(srgb ...) where CSS mixed them: a canvas gives each as bytes.
_MEASURE = """
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const bytes = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
  const light = (colour) => {
    const parts = colour.slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = bytes(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => [...over(top, below), 1], [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || element.closest("svg, script, noscript, .unseen, .skip, button:disabled")) continue;
    if (!element.checkVisibility() || element.closest("tr.arrived")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const above = over(bytes(style.color), below);
    const [one, other] = [light(above), light(below)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.5 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}
"""


def poor_contrast(page: Page) -> list[str]:
    """Texts that are hard to read, each with its ratio."""
    found: list[str] = page.evaluate(_MEASURE)
    return found
