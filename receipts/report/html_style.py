"""The look of the HTML report, and a script for sorting and filtering that nothing depends on."""

from __future__ import annotations

STYLE = """
:root{--bg:#faf9f6;--card:#ffffff;--ink:#1d1c1a;--dim:#5f5b54;--line:#ddd9d0;--soft:#f1eee8;--link:#1f4e8c;
--ok:#1c6b48;--bad:#b1241c;--form:#8a3b12;--sign:#7d1d6f;--limit:#7a5a00;--grey:#565d66;--pale:#8b8f94;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
--serif:Charter,"Iowan Old Style","Palatino Linotype",Georgia,"Liberation Serif",serif;
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace}
@media(prefers-color-scheme:dark){:root{--bg:#171715;--card:#1f1f1c;--ink:#ebe8e1;--dim:#a9a49a;--line:#3a3833;
--soft:#282723;--link:#8fb8ee;--ok:#6cc79a;--bad:#ff8a7d;--form:#eba070;--sign:#e394d6;--limit:#dcb85c;--grey:#aab2bc;
--pale:#858a91}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:2.5rem 1.5rem 4rem;background:var(--bg);color:var(--ink);
font:16px/1.5 var(--sans);font-variant-numeric:tabular-nums}
h1,h2,h3{font-family:var(--serif);font-weight:600;line-height:1.2;text-wrap:balance;overflow-wrap:anywhere}
h1{font-size:2.25rem;margin:.2rem 0 .5rem}
h2{font-size:1.5rem;margin:3rem 0 .75rem;padding-top:.9rem;border-top:2px solid var(--ink)}
h3{font-size:1.2rem;margin:0 0 .5rem}
p{max-width:46rem;margin:.5rem 0 1rem}
a{color:var(--link);text-underline-offset:.15em}
a:focus-visible,summary:focus-visible,button:focus-visible,input:focus-visible,select:focus-visible{
outline:3px solid var(--link);outline-offset:2px;border-radius:2px}
small{font-size:.78rem;font-weight:400;color:var(--dim)}
code,.say,.hex{font-family:var(--mono)}
.hex{font-size:.86rem}
.kind{margin:0;font-size:.8rem;letter-spacing:.09em;text-transform:uppercase;color:var(--dim)}
.headline{font-size:1.2rem;margin:0 0 1.5rem}
.raw{overflow-wrap:anywhere;unicode-bidi:isolate}
.say{font-size:.88rem;max-width:none;padding:.7rem .9rem;background:var(--soft);border-left:3px solid var(--c);
direction:ltr;unicode-bidi:isolate-override}
.hide{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.e{font-weight:400;color:var(--form);background:var(--soft);border-radius:2px;font-family:var(--mono);font-size:.92em}
.s{background:var(--line);border-radius:2px}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.1rem 2rem;margin:0 0 1rem}
.facts div{padding:.45rem 0;border-top:1px solid var(--line);min-width:0}
dt{font-size:.78rem;color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}
.v-IDENTICAL{--c:var(--ok)}.v-DIFFERS{--c:var(--bad)}.v-MALFORMED{--c:var(--form)}.v-SIGNATURE{--c:var(--sign)}
.v-LIMIT,.v-FAULT{--c:var(--limit)}.v-UNVERIFIABLE,.v-UNREADABLE{--c:var(--grey)}.v-NOT_RERUN{--c:var(--pale)}
.bar{display:block;width:100%;height:1.25rem;border-radius:3px}
.bar rect{fill:var(--c);stroke:var(--bg);stroke-width:2;vector-effect:non-scaling-stroke}
.badge{display:inline-block;white-space:nowrap;font:600 .74rem/1.35 var(--sans);letter-spacing:.03em;color:var(--c);
border:1px solid var(--c);border-radius:3px;padding:.08rem .4rem}
.v-NOT_RERUN .badge{color:var(--dim)}
.v-IDENTICAL .badge::before{content:"= "}.v-DIFFERS .badge::before,article .badge::before{content:"\\2260  "}
.v-MALFORMED .badge::before{content:"\\00d7  "}.v-SIGNATURE .badge::before{content:"! "}
.v-LIMIT .badge::before{content:"> "}.v-FAULT .badge::before{content:"# "}
.v-UNVERIFIABLE .badge::before{content:"? "}.v-UNREADABLE .badge::before{content:"\\2205  "}
.v-NOT_RERUN .badge::before{content:"\\2013  "}
.tiles{list-style:none;margin:1rem 0 0;padding:0;display:grid;
grid-template-columns:repeat(auto-fill,minmax(min(15rem,100%),1fr));gap:1rem 2rem}
.count{font:600 1.7rem/1 var(--serif);margin-right:.3rem}
.says{display:block;font-size:.88rem;color:var(--dim);margin-top:.25rem}
table{border-collapse:collapse;width:100%}
caption{text-align:left;color:var(--dim);font-size:.88rem;padding:0 0 .5rem}
th,td{text-align:left;vertical-align:top;font-weight:400}
.verdicts{font-size:.86rem;line-height:1.4;table-layout:fixed}
.verdicts th,.verdicts td{padding:.5rem 0;overflow-wrap:anywhere;unicode-bidi:isolate;min-width:0}
.verdicts tr{border-bottom:1px solid var(--line)}
.verdicts thead th{font-size:.78rem;color:var(--dim);white-space:nowrap}
.verdicts thead tr{border-bottom:1px solid var(--ink)}
.verdicts small{display:block;font-family:var(--mono)}
.verdicts td:nth-child(n+7),.verdicts td:nth-child(5){white-space:nowrap}
.verdicts td:nth-child(3),.say{white-space:pre-wrap}
@media screen{
.verdicts,.verdicts caption,.verdicts thead,.verdicts tbody{display:block}
.verdicts tbody{content-visibility:auto;contain-intrinsic-size:auto 1px auto 5000px}
.verdicts tbody:last-of-type{content-visibility:visible}
.verdicts thead{position:sticky;top:0;background:var(--bg);z-index:1}
.verdicts tr{display:grid;column-gap:.8rem;grid-template-columns:minmax(0,17fr) 8.6rem minmax(0,24fr) minmax(0,14fr)
5.8rem minmax(0,17fr) 4rem 2.6rem}
}
.verdicts [hidden]{display:none}
.verdicts tr:target{background:var(--soft)}
.verdicts a{text-decoration:none}.verdicts a .badge{text-decoration:underline;text-underline-offset:.15em}
thead button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:left}
thead button:hover{color:var(--ink);text-decoration:underline}
[aria-sort=ascending] button::after{content:" \\2191"}[aria-sort=descending] button::after{content:" \\2193"}
.tools{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;margin:0 0 1rem;font-size:.88rem}
.tools input,.tools select{font:inherit;color:inherit;background:var(--card);border:1px solid var(--pale);
border-radius:3px;padding:.3rem .5rem;max-width:100%}
article{--c:var(--bad);background:var(--card);border:1px solid var(--line);border-radius:5px;padding:1.4rem 1.5rem 1rem;
margin:1.5rem 0}
article:target{border-color:var(--c)}
article .badge{vertical-align:.15em;margin-right:.3rem}
.plot{margin:1.2rem 0 1.5rem}
.plot svg{display:block;width:100%;height:auto;max-width:62rem}
.plot text{font:11px var(--sans);fill:var(--dim)}
.plot .at{fill:var(--c);font-weight:600}
.plot path{fill:none;stroke-linecap:round}
.grid{stroke:var(--line)}
.stems{stroke:var(--line);stroke-width:1.5}
.dots{stroke:var(--link);stroke-width:3.4}
.lines{stroke:var(--c);stroke-dasharray:3 4}
.plot .diamonds{fill:var(--c);stroke:var(--card);stroke-width:1.2;paint-order:stroke}
figcaption{font-size:.86rem;color:var(--dim);max-width:62rem;margin-top:.4rem}
.tokens{font-size:.86rem;margin:0 0 .8rem;max-width:56rem;table-layout:fixed}
.tokens caption{padding:.4rem 0}
.tokens thead th{color:var(--dim);font-size:.78rem;border-bottom:1px solid var(--ink)}
.tokens th,.tokens td{padding:.14rem .8rem .14rem 0;border-bottom:1px solid var(--line)}
.tokens th:nth-child(1),.tokens td:nth-child(3),.tokens th:nth-child(3),.tokens td:nth-child(6),.tokens th:nth-child(6),
.tokens td:nth-child(7),.tokens th:nth-child(7){text-align:right;color:var(--dim)}
.tokens th:nth-child(1){width:4.2rem}.tokens th:nth-child(3),.tokens th:nth-child(6){width:5.4rem}
.tokens th:nth-child(4){width:1.8rem}.tokens th:nth-child(7){width:5.2rem}
.tokens td:nth-child(4){color:var(--dim);text-align:center;padding-right:.4rem}
.tokens td:nth-child(7){padding-right:.3rem}
.tokens code{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate}
.tokens .ne{background:var(--soft);box-shadow:inset 3px 0 var(--c)}
.tokens .ne th,.tokens .ne td{color:var(--ink);font-weight:600}
.tokens .ne td:nth-child(4){color:var(--c)}
.tokens .ne td:nth-child(2) code,.tokens .ne td:nth-child(5) code{outline:1px solid var(--c);outline-offset:1px;
border-radius:1px}
details{margin:0 0 .8rem}
summary{cursor:pointer;color:var(--link);font-size:.9rem;padding:.35rem 0}
.missing,.back{font-size:.86rem;color:var(--dim)}
footer{margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line);color:var(--dim);font-size:.86rem}
@media screen and (max-width:60rem){
body{padding:1.5rem 1rem 3rem}
h1{font-size:1.7rem}
.verdicts thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.verdicts tbody tr{display:block;border-left:3px solid var(--c);padding:.6rem 0 .6rem .8rem}
.verdicts th:nth-child(n),.verdicts td:nth-child(n){padding:.12rem 0;white-space:normal}
.verdicts td:nth-child(3){white-space:pre-wrap}
.verdicts th,.verdicts td{display:block}
.verdicts tbody th{font-weight:600}
.verdicts td:nth-child(n+4){display:inline-block;margin-right:1rem;color:var(--dim);max-width:100%}
.verdicts td:nth-child(n+4):empty{display:none}
.verdicts td:nth-child(5)::after{content:" tokens"}
}
@media(max-width:40rem){
article{padding:1rem .9rem .6rem;margin:1rem -.4rem}
.plot text{font-size:19px}
.dots{stroke-width:5}
.tokens{font-size:.78rem}
.tokens th,.tokens td{padding-right:.35rem}
.tokens th:nth-child(1){width:2.6rem}.tokens th:nth-child(3),.tokens th:nth-child(6){width:3.4rem}
.tokens th:nth-child(4){width:1.2rem}.tokens th:nth-child(7){width:3.2rem}
}
@media print{
:root{--bg:#fff;--card:#fff;--ink:#000;--dim:#444;--line:#bbb;--soft:#f2f2f2;--link:#000;--ok:#1c6b48;--bad:#b1241c;
--form:#8a3b12;--sign:#7d1d6f;--limit:#7a5a00;--grey:#565d66;--pale:#777}
body{max-width:none;padding:0;font-size:10pt}
.tools,.back{display:none}
.verdicts th,.verdicts td{padding-right:.5rem}
.verdicts thead th:nth-child(2){width:8.4rem}.verdicts thead th:nth-child(3){width:24%}
.verdicts thead th:nth-child(5){width:4.6rem}.verdicts thead th:nth-child(n+7){width:3.4rem}
thead{display:table-header-group;break-inside:avoid}
.verdicts,.tokens{font-size:8pt}
tr,figure,.tiles li{break-inside:avoid}
h2,h3{break-after:avoid}
article{border:0;padding:0}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
@page{size:landscape;margin:14mm}
}
"""

SCRIPT = """
(function(){
"use strict";
var table=document.getElementById("verdicts");
if(!table)return;
var list=function(items){return Array.prototype.slice.call(items)};
var bodies=list(table.tBodies),heads=list(table.tHead.rows[0].cells),size=bodies[0].rows.length,rows=[];
bodies.forEach(function(body){rows=rows.concat(list(body.rows))});
var given=rows.map(function(row,at){row.at=at;return row});
function make(name,text){var node=document.createElement(name);if(text)node.textContent=text;return node}
var tools=make("div"),input=make("input"),select=make("select"),said=make("span"),seen={};
tools.className="tools";
input.type="search";input.placeholder="Filter by any text";input.setAttribute("aria-label","Filter by any text");
select.setAttribute("aria-label","Verdict");
said.setAttribute("role","status");
select.appendChild(make("option","All verdicts")).value="";
rows.forEach(function(row){
var kind=row.className;
if(!seen[kind]){seen[kind]=1;select.appendChild(make("option",kind.slice(2).replace("_"," "))).value=kind}
});
function refill(){
var shown=rows.filter(function(row){return!row.hidden}),rest=rows.filter(function(row){return row.hidden});
shown.concat(rest).forEach(function(row,at){bodies[Math.floor(at/size)].appendChild(row)});
bodies.forEach(function(body,at){body.hidden=at*size>=shown.length});
}
input.oninput=select.onchange=function(){
var text=input.value.toLowerCase(),kind=select.value,shown=0;
given.forEach(function(row){
row.hidden=!((!kind||row.className===kind)&&(!text||row.textContent.toLowerCase().indexOf(text)>=0));
shown+=!row.hidden});
said.textContent=shown===rows.length?"":shown+" of "+rows.length+" shown";
refill();
};
tools.appendChild(input);tools.appendChild(select);tools.appendChild(said);
table.parentNode.insertBefore(tools,table);
function number(text){return text.replace(/[, s]/g,"").split("+").reduce(function(a,b){return a+(+b||0)},0)}
function key(column,row){
var text=column===1?"":row.cells[column].textContent;
return column===1?row.at:column===4||column===6?number(text):text.toLowerCase();
}
heads.forEach(function(head,column){
var button=make("button",head.textContent);
button.type="button";head.textContent="";head.appendChild(button);
button.onclick=function(){
var sign=head.getAttribute("aria-sort")==="ascending"?-1:1;
heads.forEach(function(other){other.removeAttribute("aria-sort")});
head.setAttribute("aria-sort",sign>0?"ascending":"descending");
rows=given.map(function(row){return[key(column,row),row]}).sort(function(a,b){
return(a[0]<b[0]?-1:a[0]>b[0]?1:0)*sign||a[1].at-b[1].at}).map(function(pair){return pair[1]});
refill();
};
});
// Some readers forget that a table is one once it is laid out in another way.
if(rows.length<2000){
table.setAttribute("role","table");
list(table.querySelectorAll("thead,tbody")).forEach(function(node){node.setAttribute("role","rowgroup")});
list(table.querySelectorAll("tr")).forEach(function(node){node.setAttribute("role","row")});
list(table.querySelectorAll("td")).forEach(function(node){node.setAttribute("role","cell")});
list(table.querySelectorAll("tbody th")).forEach(function(node){node.setAttribute("role","rowheader")});
heads.forEach(function(node){node.setAttribute("role","columnheader")});
}
})();
"""
