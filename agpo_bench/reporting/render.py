"""Tables as Markdown and LaTeX, through one template a format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import jinja2

from agpo_bench import paths
from agpo_bench.reporting.tables import Cell, Table

_TEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "ε": r"$\varepsilon$",
    "τ": r"$\tau$",
    "β": r"$\beta$",
    "σ": r"$\sigma$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "--",
    "→": r"$\rightarrow$",
}


def escape_tex(text: str) -> str:
    """Text safe in LaTeX: special characters escaped, the rest kept."""
    return "".join(_TEX_SPECIAL.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Text safe inside a Markdown table cell."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", text.replace("\n", " "))


def render_markdown(table: Table, *, caption: str, warnings: Sequence[str]) -> str:
    """One Markdown section: heading, caption, table, and what to read with care."""
    headings = [{"title": "Method", "group": ""}]
    previous = ""
    for column in table.columns:
        headings.append(
            {
                "title": escape_markdown(column.title),
                "group": escape_markdown(column.group) if column.group != previous else "",
            }
        )
        previous = column.group
    rows = [[escape_markdown(row.title), *(_markdown_cell(cell, table) for cell in row.cells)] for row in table.rows]
    return _template("table.md.j2").render(
        title=escape_markdown(table.spec.title),
        caption=escape_markdown(caption),
        columns=headings,
        rows=rows,
        warnings=[escape_markdown(warning) for warning in warnings],
    )


def render_tex(table: Table, *, caption: str, warnings: Sequence[str]) -> str:
    """A ``table`` environment with booktabs rules."""
    spans: list[dict[str, Any]] = [{"title": "", "width": 1, "first": 1, "last": 1}]
    for group, members in groupby(table.columns, key=lambda column: column.group):
        width = len(list(members))
        first = spans[-1]["last"] + 1
        spans.append({"title": escape_tex(group), "width": width, "first": first, "last": first + width - 1})
    rows = [[escape_tex(row.title), *(_tex_cell(cell, table) for cell in row.cells)] for row in table.rows]
    return _template("table.tex.j2").render(
        caption=escape_tex(caption),
        label=table.name.replace("_", "-"),
        columns=[{"title": "Method"}, *({"title": escape_tex(column.title)} for column in table.columns)],
        spans=spans if any(span["title"] for span in spans) else [],
        rows=rows,
        warnings=[escape_tex(warning) for warning in warnings],
    )


def _markdown_cell(cell: Cell, table: Table) -> str:
    text = cell.printed_mean()
    if cell.mark == "best":
        text = f"**{text}**"
    elif cell.mark == "second":
        text = f"*{text}*"
    std = cell.printed_std() if table.spec.show_std else ""
    return f"{text} ± {std}" if std else text


def _tex_cell(cell: Cell, table: Table) -> str:
    text = cell.printed_mean().replace("–", "--")
    if text.startswith("-") and text != "--":
        text = f"${text}$"
    if cell.mark == "best":
        text = rf"\textbf{{{text}}}"
    elif cell.mark == "second":
        text = rf"\textit{{{text}}}"
    std = cell.printed_std() if table.spec.show_std else ""
    return rf"{text} {{\scriptsize$\pm$\,{std}}}" if std else text


def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(paths.definitions("reports"))
    if ".tex." in name:
        # TeX is full of braces: other delimiters keep the template readable.
        environment = jinja2.Environment(
            loader=loader,
            autoescape=False,  # the values are escaped for TeX by escape_tex
            block_start_string="<%",
            block_end_string="%>",
            variable_start_string="<<",
            variable_end_string=">>",
            comment_start_string="<#",
            comment_end_string="#>",
            trim_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
    else:
        environment = jinja2.Environment(loader=loader, autoescape=False, undefined=jinja2.StrictUndefined)
    return environment.get_template(name)
