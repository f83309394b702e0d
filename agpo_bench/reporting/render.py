"""Tables as Markdown and LaTeX, through one template a format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import jinja2

from agpo_bench import paths
from agpo_bench.reporting.figure_data import Figure
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
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "§": r"\S{}",
    "…": r"\dots{}",
    "’": "'",
}


_MAX_TEX_COLUMNS = 12
"""A table with more is scaled down to the width of the text."""


def escape_tex(text: str) -> str:
    """Text safe in LaTeX: special characters escaped, the rest kept."""
    return "".join(_TEX_SPECIAL.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Text safe inside a Markdown table cell."""
    return re.sub(r"([\\|*_`<>\[\]~])", r"\\\1", " ".join(text.split()))


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
    return _template("table.md.j2").render(
        title=escape_markdown(table.heading),
        caption=escape_markdown(caption),
        columns=headings,
        rows=[[escape_markdown(row.title), *map(_markdown_cell, row.cells)] for row in table.rows],
        warnings=[escape_markdown(warning) for warning in warnings],
    )


def render_tex(table: Table, *, caption: str, warnings: Sequence[str]) -> str:
    """A ``table`` environment with booktabs rules; numbers are aligned by siunitx, what follows them is left of it."""
    spans: list[dict[str, Any]] = [{"title": "", "width": 1, "first": 1, "last": 1}]
    for group, members in groupby(table.columns, key=lambda column: column.group):
        width = 2 * len(list(members))
        first = spans[-1]["last"] + 1
        spans.append({"title": escape_tex(group), "width": width, "first": first, "last": first + width - 1})
    return _template("table.tex.j2").render(
        caption=escape_tex(caption),
        label=table.name.replace("_", "-"),
        formats=[_table_format([row.cells[index] for row in table.rows]) for index in range(len(table.columns))],
        columns=[escape_tex(column.title) for column in table.columns],
        is_wide=len(table.columns) > _MAX_TEX_COLUMNS,
        spans=spans if any(span["title"] for span in spans) else [],
        rows=[[escape_tex(row.title), *(part for cell in row.cells for part in _tex_cell(cell))] for row in table.rows],
        warnings=[escape_tex(warning) for warning in warnings],
    )


def render_markdown_figure(figure: Figure, *, image: str) -> str:
    """One Markdown section: heading, picture with its text, caption."""
    alternative = escape_markdown(figure.description)
    return f"## {escape_markdown(figure.title)}\n\n![{alternative}]({image})\n\n{escape_markdown(figure.caption)}\n"


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(cell.printed_mean())
    if cell.mark == "best":
        text = f"**{text}**"
    elif cell.mark == "second":
        text = f"*{text}*"
    spread = cell.printed_spread()
    return text + (f" ± {spread}" if spread else "") + escape_markdown(cell.printed_marks())


def _tex_cell(cell: Cell) -> tuple[str, str]:
    """The number for its S column, and spread and marks for the column after it."""
    text = cell.printed_mean()
    # siunitx takes whatever stands in braces as it is.
    text = text if _is_number(text) else "{" + escape_tex(text) + "}"
    if cell.mark:
        text = (r"\bfseries " if cell.mark == "best" else r"\itshape ") + text
    spread = cell.printed_spread()
    after = rf"{{\scriptsize$\pm$\,{spread}}}" if spread else ""
    marks = cell.stars + {"": "", "†": r"\dagger", "‡": r"\ddagger", "§": r"\S"}[cell.doubt[:1]]
    return text, after + (f"$^{{{marks}}}$" if marks else "")


def _table_format(cells: Sequence[Cell]) -> str:
    """Siunitx's ``table-format``: sign, digits before and after the point, of the widest cell."""
    texts = [text for cell in cells if _is_number(text := cell.printed_mean())]
    whole = max((len(text.lstrip("+-").partition(".")[0]) for text in texts), default=1)
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    sign = "+" if any(text[0] in "+-" for text in texts) else ""
    return f"{sign}{whole}.{decimals}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text) is not None


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
