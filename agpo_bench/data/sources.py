"""Where benchmark items come from: a folder of JSON lines, the hub, or the embedded sample."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from agpo_bench.data.benchmarks import Split, TaskSpec
from agpo_bench.data.rows import Item, Row, read_row, reference_to_json

_log = logging.getLogger(__name__)

SourceKind = Literal["folder", "hub", "embedded"]


@dataclass(frozen=True, kw_only=True)
class LoadedSplit:
    """All items of one split of one task, and how they were come by."""

    task: TaskSpec
    split: Split
    source: DataSource
    items: tuple[Item, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file read; a data set's own fingerprint for the hub."""
    num_removed: int = 0
    """Train items left out because the test split asks the same question."""
    num_unreadable: int = 0
    """Train rows left out because they cannot be judged (a box left empty, a program that writes a named file)."""

    @property
    def checksum(self) -> str:
        """SHA-256 over every question and reference in order: the same items give the same sum from any source."""
        digest = hashlib.sha256()
        for item in self.items:
            digest.update(
                f"{item.prompt or ''}\x1f{reference_to_json(item.reference)}\n".encode("utf-8", "surrogatepass")
            )
        return digest.hexdigest()

    def render(self, item: Item) -> str:
        """The zero-shot user text of an item."""
        if item.prompt is not None:
            return item.prompt
        return fill(self.task.prompt, item)


class DataSource(Protocol):
    """Gives the items of any task."""

    kind: SourceKind
    description: str
    """One line for captions and result files."""
    spec: str
    """What ``open_source`` was given: opens the same source again."""

    def load(self, task: TaskSpec, split: Split) -> LoadedSplit:
        """All items of a split. Absent split or files: ``ValueError`` that says what there is."""
        ...

    def stored(self, task: TaskSpec, split: Split) -> tuple[Item, ...]:
        """The items of a split as they are stored: nothing held out, and none left out for being asked by the test."""
        ...

    def splits(self, task: TaskSpec) -> list[Split]:
        """Splits that are stored."""
        ...


def open_source(spec: str | Path) -> DataSource:
    """``embedded``, ``hub``, ``hub:DIR`` (a mirror: one folder a data set id), or a folder of benchmark files."""
    text = str(spec)
    if text == "embedded":
        return EmbeddedSource()
    if text == "hub" or text.startswith("hub:"):
        return HubSource(mirror=Path(text[4:]) if text.startswith("hub:") else None)
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ValueError(f"no data folder {text!r}; pass a folder of benchmark files, hub, or embedded")
    return FolderSource(folder)


def fill(template: str, item: Item) -> str:
    """Put a question and its options into a template; braces in either are left alone."""
    options = "\n".join(f"({chr(ord('A') + i)}) {text}" for i, text in enumerate(item.reference.options))
    before, _, after = template.partition("{question}")
    return before.replace("{options}", options) + item.question + after.replace("{options}", options)


def question_key(question: str) -> str:
    """A question up to white space: two items with equal keys ask the same. Nothing else is dropped: + and - matter."""
    return "".join(question.split())


@dataclass(frozen=True)
class RowsOfSplit:
    """Rows as the data set has them, and the SHA-256 or fingerprint of each file."""

    rows: Iterable[Row]
    files: Mapping[str, str]


class _RowSource:
    """What the folder and the hub share: held-out part, train without test questions, row numbers as ids."""

    def load(self, task: TaskSpec, split: Split) -> LoadedSplit:
        """All items of a split."""
        is_held_out = task.held_out_one_in is not None and split in ("train", "dev")
        stored: Split = "train" if is_held_out else split
        read = self.rows(task, stored)
        items, num_unreadable = self._items(task, stored, read.rows)
        num_removed = 0
        if is_held_out:
            items = [item for item in items if _is_held_out(item, task.held_out_one_in or 1) == (split == "dev")]
        files = dict(read.files)
        if stored == "train" and "test" in self.splits(task):
            test = self.load(task, "test")
            asked = {question_key(item.question) for item in test.items}
            kept = [item for item in items if question_key(item.question) not in asked]
            items, num_removed = kept, len(items) - len(kept)
            files |= test.files
        if num_unreadable:
            _log.warning(
                "%s: %d train rows hold nothing a grader can judge (no answer, or a named file) and are left out",
                task.name,
                num_unreadable,
            )
        if not items:
            raise ValueError(f"{task.name}: the {split} split of {self.description} has no item")
        return LoadedSplit(
            task=task,
            split=split,
            source=self,
            items=tuple(items),
            files=files,
            num_removed=num_removed,
            num_unreadable=num_unreadable,
        )

    def stored(self, task: TaskSpec, split: Split) -> tuple[Item, ...]:
        """The items of a split as they are stored."""
        return tuple(self._items(task, split, self.rows(task, split).rows)[0])

    def _items(self, task: TaskSpec, split: Split, rows: Iterable[Row]) -> tuple[list[Item], int]:
        items, num_unreadable = [], 0
        for index, row in enumerate(rows):
            try:
                items.append(read_row(task, row, prompt_id=f"{task.name}/{split}/{index}"))
            except ValueError:
                # Training data may hold rows no grader can judge; a test split with one is wrong and says so.
                if split != "train":
                    raise
                num_unreadable += 1
        return items, num_unreadable

    kind: SourceKind
    description: str
    spec: str

    def splits(self, task: TaskSpec) -> list[Split]:
        """Splits that are stored."""
        raise NotImplementedError

    def rows(self, task: TaskSpec, split: Split) -> RowsOfSplit:
        """The rows of a stored split."""
        raise NotImplementedError


def _is_held_out(item: Item, one_in: int) -> bool:
    digest = hashlib.sha256(question_key(item.question).encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


def _no_split(task: TaskSpec, split: Split, where: str, splits: Iterable[str]) -> ValueError:
    names = [*splits, *(["dev"] if task.held_out_one_in else [])]
    return ValueError(f"{task.name} has no {split} split in {where}; it has {', '.join(names) or 'none'}")


class FolderSource(_RowSource):
    """A folder of JSON-lines files; every file a MANIFEST.json lists is checked against it before use."""

    kind: SourceKind = "folder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = str(folder)
        self._listed = _read_manifest(folder)
        note = "checksums verified" if self._listed else "no MANIFEST.json"
        self.description = f"benchmark files of folder {folder.resolve().name} ({note})"

    def splits(self, task: TaskSpec) -> list[Split]:
        """Splits that have a file."""
        return [split for split, pattern in task.files.items() if any(self.folder.glob(pattern))]

    def rows(self, task: TaskSpec, split: Split) -> RowsOfSplit:
        """The rows of a split's files, checked against the manifest."""
        pattern = task.files.get(split)
        if pattern is None:
            raise _no_split(task, split, self.description, self.splits(task))
        found = sorted(self.folder.glob(pattern))
        listed = {name for name in self._listed if Path(name).match(pattern)}
        if missing := listed - {self._name(path) for path in found}:
            raise ValueError(f"{self.folder / min(missing)} is listed in MANIFEST.json but missing; restore the file")
        if not found:
            if self.splits(task):
                raise _no_split(task, split, self.description, self.splits(task))
            raise ValueError(f"{task.name}: no file {pattern} in {self.folder}; pass a folder with it, or --data hub")
        contents = {self._name(path): path.read_bytes() for path in found}
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        for name, digest in sums.items():
            if self._listed.get(name, digest) != digest:
                raise ValueError(
                    f"{self.folder / name}: SHA-256 {digest[:12]}… differs from {self._listed[name][:12]}… in "
                    "MANIFEST.json; restore the file or correct the manifest"
                )
        return RowsOfSplit([row for name, content in contents.items() for row in _json_rows(name, content)], sums)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _read_manifest(folder: Path) -> dict[str, str]:
    """File -> SHA-256, from MANIFEST.json: benchmark folder -> list of {file, sha256}."""
    path = folder / "MANIFEST.json"
    if not path.is_file():
        return {}
    try:
        content: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
        return {
            f"{benchmark}/{entry['file']}": str(entry["sha256"])
            for benchmark, entries in content.items()
            for entry in entries
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a manifest of the form {{folder: [{{file, sha256}}]}} ({error})") from None


def _json_rows(name: str, content: bytes) -> Iterator[Row]:
    # Split at line feeds only: str.splitlines would also cut at U+2028 and U+0085 inside a question.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{name}, line {number}: not a JSON object")
        yield row


class HubSource(_RowSource):
    """The Hugging Face hub through ``datasets``, or a folder that mirrors it (``<dir>/<owner>/<name>/…``)."""

    kind: SourceKind = "hub"

    def __init__(self, mirror: Path | None = None) -> None:
        self.mirror = mirror
        self.spec = f"hub:{mirror}" if mirror else "hub"
        self.description = f"Hugging Face hub data sets{f' (mirror {mirror.name})' if mirror else ''}"

    def splits(self, task: TaskSpec) -> list[Split]:
        """Splits that the task file names."""
        return list(task.hub.splits)

    def rows(self, task: TaskSpec, split: Split) -> RowsOfSplit:
        """The rows of a split of the data set, all its configurations joined."""
        if split not in task.hub.splits:
            raise _no_split(task, split, f"the hub data set {task.hub.dataset}", self.splits(task))
        config, _, theirs = task.hub.splits[split].rpartition("/")
        configs: list[str | None] = [config] if config else list(task.hub.configs) or [None]
        rows: list[Row] = []
        files: dict[str, str] = {}
        for name in configs:
            dataset = self._dataset(task, name, theirs)
            rows.extend(dataset)
            key = "/".join(part for part in (task.hub.dataset, name, theirs) if part)
            files[f"{key}@{task.hub.revision}"] = str(dataset._fingerprint)
        return RowsOfSplit(rows, files)

    def _dataset(self, task: TaskSpec, config: str | None, split: str) -> Any:
        import datasets

        where = task.hub.dataset if self.mirror is None else str(self.mirror / task.hub.dataset)
        revision = {"revision": task.hub.revision} if self.mirror is None else {}
        try:
            return datasets.load_dataset(where, config, split=split, **revision)
        # FileNotFoundError (a hub that does not know the id, or a missing mirror) and ConnectionError are OSErrors.
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{task.name}: the hub data set {task.hub.dataset} cannot be loaded ({reason}); "
                "connect to the hub, or pass --data DIR with the benchmark files"
            ) from error


class EmbeddedSource:
    """Generated problems in the benchmarks' answer formats. They are not the benchmarks, and every caption says so."""

    kind: SourceKind = "embedded"
    spec = "embedded"
    description = "embedded sample (generated problems, not the benchmarks)"

    def load(self, task: TaskSpec, split: Split) -> LoadedSplit:
        """All embedded items of a split."""
        from agpo_bench.data.embedded import embedded_items

        if split == "validation":
            raise ValueError(f"{task.name} has no validation split in the embedded sample; it has train, dev, test")
        items = tuple(
            Item(prompt_id=item.item_id, reference=item.reference, solution=item.worked, prompt=item.prompt)
            for item in embedded_items(task.name, split)
        )
        return LoadedSplit(task=task, split=split, source=self, items=items)

    def stored(self, task: TaskSpec, split: Split) -> tuple[Item, ...]:
        """All embedded items of a split."""
        return self.load(task, split).items

    def splits(self, task: TaskSpec) -> list[Split]:
        """The same three for every task."""
        del task
        return ["train", "dev", "test"]
