"""The command `nrl-dump`: its words and options; what the verbs do stands in `nrl_dump.commands`.

Exit codes: 0, all is well; 1, an error, one line on stderr, or `verify` found something; 2, the command was called
wrongly; 130, Ctrl-C, which is the way to end `tail -f`.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from nrl_interfaces.fileops import FileOps

from nrl_dump import __version__
from nrl_dump.commands import parquet
from nrl_dump.commands.checking import judge, steps_to_verify
from nrl_dump.commands.following import follow
from nrl_dump.commands.progress import show_progress
from nrl_dump.commands.select import Condition, select_rows
from nrl_dump.commands.stats import step_stats
from nrl_dump.commands.steps import StepSummary, find_step, list_steps, prune_steps, summarize
from nrl_dump.commands.text import counted, printable, row_lines, size_text, table_lines
from nrl_dump.manifest import InterruptedStepError
from nrl_dump.names import published_steps

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_STEP_HELP = "Of a folder, the step with this number in its file's name (trainer's step + 1); else the newest."


def main() -> None:
    """Run the command with the process's arguments, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run the command and return its exit code; see the module for those there are."""
    stdout: Any = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")  # ids and tags hold more than some terminals' encodings
    try:
        code: Any = cli.main(list(args), prog_name="nrl-dump", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (OSError, ValueError, InterruptedStepError, ImportError) as error:
        click.echo(f"nrl-dump: {printable(str(error))}", err=True)
        return 1
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="nrl-dump")
def cli() -> None:
    """Look at, check and convert what nrl-dump has written.

    N in train_data_step<N>.jsonl, here and in --step, is the trainer's step + 1: files count from 1.
    """


def _json_option(what: str) -> Callable[[_Function], _Function]:
    return click.option("--json", "as_json", is_flag=True, help=f"For machines: {what}.")


@cli.command("ls")
@click.argument("folder", type=_FOLDER)
@_json_option("one object a line for each step")
def ls(folder: Path, *, as_json: bool) -> None:
    """List the steps in FOLDER, unpublished ones too.

    States: published; unpublished (parts only: being written, or left by a crash); interrupted (finish_step again
    mends it); damaged; no manifest (an older logger's).
    """
    steps = list_steps(folder)
    if as_json:
        _echo_json_lines(step.to_json() for step in steps)
        return
    header = ("step", "rows", "size", "shards", "state", "columns")
    _echo_lines(table_lines(header, [_ls_cells(step) for step in steps]))


def _ls_cells(step: StepSummary) -> tuple[object, ...]:
    beside = f", {counted(step.parts, 'part')} beside it" if step.parts and step.state == "published" else ""
    columns = " ".join(step.columns)
    return step.number, step.rows, size_text(step.bytes), len(step.shards), f"{step.state}{beside}", columns


@cli.command("show")
@click.argument("path", type=_PATH)
@click.option("--step", "number", type=click.IntRange(min=1), metavar="N", help=_STEP_HELP)
@click.option("--idx", type=click.IntRange(min=0), multiple=True, help="Only the row of this number; may be repeated.")
@click.option("--sample-id", "sample_ids", multiple=True, help="Only this sample's row; may be repeated.")
@click.option("--where", multiple=True, metavar="'COLUMN OP VALUE'", help="Only rows that meet it; may be repeated.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.")
@click.option("--full", is_flag=True, help="Do not shorten long lists and strings.")
@_json_option("the rows as they stand in the file, NaN as inf_nan wrote it, one a line, nothing shortened")
def show(
    path: Path,
    *,
    number: int | None,
    idx: tuple[int, ...],
    sample_ids: tuple[str, ...],
    where: tuple[str, ...],
    limit: int | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show rows of a step.

    PATH is its file or its folder. A condition of --where has a column of one value a row, or metadata.KEY for a tag,
    then one of < <= > >= == !=, then a number, string, true, false, null or NaN: --where "reward<0.5" --where
    "metadata.task==math". A row without a tag of that name does not meet it.
    """
    conditions = [_condition(text) for text in where]
    rows = select_rows(find_step(path, number), idx=idx, sample_ids=sample_ids, conditions=conditions, limit=limit)
    if as_json:
        _echo_json_lines(rows)
        return
    for row in rows:
        _echo_lines(row_lines(row, full=full))


def _condition(text: str) -> Condition:
    try:
        return Condition.parse(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@cli.command("tail")
@click.argument("folder", type=_FOLDER)
@click.option("-f", "--follow", "keep_on", is_flag=True, help="Go on with each step as it is published; end by Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(min=0), default=10, show_default=True, help="Steps to begin with.")
@click.option("--interval", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Seconds of a wait.")
@_json_option("one object a line for each step, as ls gives")
def tail(folder: Path, *, keep_on: bool, last: int, interval: float, as_json: bool) -> None:
    """Show the last published steps in FOLDER.

    One a line; -f goes on with each that is published or replaced. Ctrl-C ends it with exit code 130.
    """
    if keep_on:
        steps: Iterable[StepSummary] = follow(folder, last=last, sleep=time.sleep, interval_s=interval)
    else:
        there = published_steps(folder)
        steps = map(summarize, there[max(0, len(there) - last) :])
    for step in steps:
        if as_json:
            _echo_json_lines([step.to_json()])
        else:
            rows = "? rows" if step.rows is None else counted(step.rows, "row")
            shards = counted(len(step.shards), "shard")
            click.echo(f"{step.path.name}  {rows}  {size_text(step.bytes)}  {shards}  {step.state}")


@cli.command("stats")
@click.argument("path", type=_PATH)
@click.option("--step", "number", type=click.IntRange(min=1), metavar="N", help=_STEP_HELP)
@_json_option("one object; a mean, min or max of nothing finite is null")
def stats(path: Path, *, number: int | None, as_json: bool) -> None:
    """Show numbers about the columns of a step.

    PATH is its file or its folder. Counted are items, NaN and infinities, in all rows. Mean, min and max are those of
    finite items; shortest and longest are rows, in items.
    """
    found = step_stats(find_step(path, number), show_progress)
    if as_json:
        _echo_json_lines([found.to_json()])
        return
    click.echo(f"step {found.number}  {counted(found.rows, 'row')}  {printable(str(found.path))}")
    columns = [column.to_json() for column in found.columns]
    _echo_lines(table_lines(list(columns[0]), [list(column.values()) for column in columns]))


@cli.command("verify")
@click.argument("paths", type=_PATH, nargs=-1, required=True, metavar="PATH...")
@_json_option("one object a line for each step")
def verify(paths: tuple[Path, ...], *, as_json: bool) -> int:
    """Check steps against their manifests.

    PATH is a step's file, or a folder for all its steps; every byte is read.

    whole: as it was published. interrupted: call finish_step again. damaged: restore or write again. unpublished:
    parts only, which is no fault of a folder. Exit code 1 if a step is interrupted, damaged or missing.
    """
    named = {path.absolute() for path in paths}
    steps = steps_to_verify(list(paths))
    failed = False
    for files in show_progress(steps, len(steps), "step"):
        verdict = judge(files, named=files.data.absolute() in named)
        failed = failed or not verdict.ok
        if as_json:
            _echo_json_lines([verdict.to_json()])
        else:
            click.echo(printable(f"{verdict.path}: {verdict.state}: {verdict.detail}"))
    return int(failed)


@cli.command("convert")
@click.argument("path", type=_PATH)
@click.option("--step", "number", type=click.IntRange(min=1), metavar="N", help=_STEP_HELP)
@click.option("--to", "form", type=click.Choice(["parquet"]), default="parquet", show_default=True, help="The format.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@_json_option("one object")
def convert(path: Path, *, number: int | None, form: str, output: Path, as_json: bool) -> None:
    """Write a step as Parquet.

    PATH is its file or its folder. Columns are plain, in the types that were written; bfloat16 and float8 become
    float32. The output appears whole, in place of a file that was there. Tags are a
    JSON string in column metadata. Needs pyarrow: pip install nrl-dump[parquet].
    """
    source = find_step(path, number)
    manifest = parquet.write_parquet(source, output, FileOps(), show_progress)
    size = output.stat().st_size
    if as_json:
        _echo_json_lines([{"from": str(source), "to": form, "path": str(output), "rows": manifest.rows, "bytes": size}])
    else:
        click.echo(printable(f"{output}: {counted(manifest.rows, 'row')}, {size_text(size)}"))


@cli.command("prune")
@click.argument("folder", type=_FOLDER)
@click.option("--keep-last", type=click.IntRange(min=1), required=True, metavar="K", help="Published steps that stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_json_option("one object")
def prune(folder: Path, *, keep_last: int, dry_run: bool, as_json: bool) -> None:
    """Remove older published steps.

    The K steps of the highest numbers in FOLDER stay, and so does what is unpublished.
    """
    gone = prune_steps(folder, keep_last, dry_run=dry_run, ops=FileOps())
    if as_json:
        _echo_json_lines([{"removed": [str(path) for path in gone], "dry_run": dry_run}])
        return
    for path in gone:
        click.echo(printable(f"{'would remove' if dry_run else 'removed'} {path}"))


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _echo_json_lines(things: Iterable[Any]) -> None:
    for thing in things:
        click.echo(json.dumps(thing))  # ASCII only: no terminal, encoding or way of splitting lines harms it
