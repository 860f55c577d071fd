"""How the report of a backtest looks."""

STYLE = """
:root{--page:#fbfcfe;--card:#ffffff;--ink:#1a2430;--muted:#5d6b7b;--edge:#dfe6ee;--grid:#e8edf3;--accent:#1f5fbf;
--found:#2f6fd6;--current:#b9c6d6;--same:#9db0c6;--new:#1f9d6b;--gone:#d9652b;--code:#f2f5f9;--warn:#fff6e5;
--warnedge:#f1d9a6}
@media (prefers-color-scheme:dark){:root{--page:#10151c;--card:#171e27;--ink:#e5ebf2;--muted:#98a6b6;--edge:#283340;
--grid:#232d39;--accent:#86b4ff;--found:#6ba3ff;--current:#4c5c6f;--same:#56687d;--new:#3fc48c;--gone:#f08a52;
--code:#1f2832;--warn:#2a2417;--warnedge:#57481f}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:940px;margin:0 auto;padding:36px 24px 80px}
h1{font-size:27px;line-height:1.2;margin:0 0 10px;letter-spacing:-.01em}
h2{font-size:20px;margin:0;display:flex;gap:10px;align-items:center;flex-wrap:wrap}
h3{font-size:15px;margin:26px 0 8px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12.5px}
pre{background:var(--code);padding:14px 16px;border-radius:8px;overflow-x:auto;margin:8px 0 0}
header{margin-bottom:22px}
.fact{display:inline-block;color:var(--muted);margin-right:18px}.fact b{color:var(--ink)}
.note{background:var(--warn);border:1px solid var(--warnedge);border-radius:8px;padding:8px 14px;margin:10px 0}
.said{color:var(--muted);margin:10px 0}
section{background:var(--card);border:1px solid var(--edge);border-radius:14px;padding:24px 26px 22px;margin-top:24px}
.id{color:var(--muted);margin:4px 0 0}.lead{margin:14px 0 16px;font-size:16px}
.badge{color:#fff;font-size:11.5px;font-weight:650;border-radius:20px;padding:2px 10px;letter-spacing:.02em}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin-bottom:16px}
.tile{flex:1 1 108px;max-width:190px;border:1px solid var(--edge);border-radius:10px;padding:10px 14px;
border-top:3px solid var(--edge)}
.tile b{display:block;font-size:23px;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:13px}.tile small{display:block;color:var(--muted);font-size:12px}
.tile.found{border-top-color:var(--found)}.tile.current{border-top-color:var(--current)}
.tile.new{border-top-color:var(--new)}.tile.gone{border-top-color:var(--gone)}
table{border-collapse:collapse;width:100%}
th{font-weight:600;color:var(--muted);font-size:13px;text-align:left}
th,td{padding:8px 10px;border-bottom:1px solid var(--edge);vertical-align:top}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.wide{width:22%;vertical-align:middle}
.overview{background:var(--card);border:1px solid var(--edge);border-radius:14px;border-collapse:separate;
border-spacing:0;overflow:hidden}.overview tr:last-child td{border-bottom:0}
.shares{display:block;width:100%;height:10px;border-radius:5px;overflow:hidden}
rect.same{fill:var(--same)}rect.new{fill:var(--new)}rect.gone{fill:var(--gone)}
.chart{display:block;width:100%;height:auto;margin:4px 0 6px}
rect.found{fill:var(--found)}rect.current{fill:var(--current)}rect.hit{fill:transparent}
g:hover rect.hit{fill:var(--grid)}
line.grid{stroke:var(--grid);stroke-width:1}text.axis{fill:var(--muted);font-size:11px}
.legend{margin:18px 0 2px;color:var(--muted);font-size:13px}
.key{margin-right:18px}.key:before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;
margin-right:7px}.key.found:before{background:var(--found)}.key.current:before{background:var(--current)}
summary{cursor:pointer;padding:2px 0}summary time{color:var(--muted);margin-left:8px;font-variant-numeric:tabular-nums}
details.text{margin-top:14px;color:var(--muted)}details.text pre{color:var(--ink)}
.example{border:1px solid var(--edge);border-radius:10px;padding:8px 14px;margin:8px 0}
.example p{margin:8px 0}.events td{padding:5px 10px 5px 0;font-size:13px}.events code{word-break:break-word}
.events tr:last-child td{border-bottom:0}.place{color:var(--muted);white-space:nowrap}.more{color:var(--muted)}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
