"""The command `nrl-rollout-ckpt`: its words and options; what the verbs do stands in `nrl_rollout_ckpt.commands`.

Exit codes: 0, all is well; 1, an error, `verify` found damage, or a start would refuse what `explain` looked at; 2, the
command was called wrongly; 130, Ctrl-C. Errors are one line on stderr.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from nrl_rollout_ckpt.commands.contents import GroupSummary, read_contents
from nrl_rollout_ckpt.commands.entries import (
    Entry,
    is_checkpoint_folder,
    is_snapshot,
    is_trainer_checkpoint,
    list_entries,
    look_at,
)
from nrl_rollout_ckpt.commands.explaining import Explanation, explain
from nrl_rollout_ckpt.commands.pruning import prune as prune_folder
from nrl_rollout_ckpt.commands.text import (
    age_text,
    field_lines,
    path_within,
    printable,
    size_text,
    table_lines,
    time_text,
)
from nrl_rollout_ckpt.config import RolloutCheckpointConfig

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAME = "nrl-rollout-ckpt"
_MAX_PROBLEMS = 3
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


def main() -> None:
    """Run the command with the process's arguments, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run the command and return its exit code; see the module for those there are."""
    stdout: Any = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")  # ids hold more than some terminals' encodings
    try:
        code: Any = cli.main(list(args) or ["--help"], prog_name=_NAME, standalone_mode=False)
    except click.ClickException as error:
        return _say_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (OSError, ValueError) as error:
        return _say_error(str(error), 1)
    return code if isinstance(code, int) else 0


def _say_error(text: str, code: int) -> int:
    click.echo(f"{_NAME}: {printable(text)}", err=True)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name=_NAME, prog_name=_NAME)
def cli() -> None:
    """Look at, check and tidy checkpoints of rollouts.

    FOLDER is the folder of a run's trainer checkpoints, with step_<N> and bootstrap in it. All commands but prune only
    read, and may be called while a run saves.
    """


def _json_option(what: str) -> Callable[[_Function], _Function]:
    return click.option("--json", "as_json", is_flag=True, help=f"For machines: {what}.")


@cli.command("ls")
@click.argument("folder", type=_FOLDER)
@_json_option("one object a line for each")
def ls(folder: Path, *, as_json: bool) -> None:
    """List the anchors and snapshots in FOLDER, the oldest first.

    Groups are complete ones + others; rows are those in the data plane. Only names, sizes and manifests are looked at,
    verify reads the bytes. unpublished: being written, or left by a process that ended.
    """
    entries, now = list_entries(folder, digests=False), time.time()
    if as_json:
        _echo_json_lines(entry.to_json(now) for entry in entries)
        return
    header = ("path", "size", "age", "groups", "rows", "reserve", "episodes", "state")
    _echo_lines(table_lines(header, [_ls_cells(entry, folder, now) for entry in entries]))


def _ls_cells(entry: Entry, folder: Path, now: float) -> tuple[object, ...]:
    counts = None if entry.manifest is None else entry.manifest.counts
    held = ("-",) * 4
    if counts is not None:
        groups = f"{counts.replay_groups} + {counts.ledger_groups}"
        held = (groups, str(counts.rows), str(counts.reserve), str(counts.environment_episodes))
    age = age_text(entry.age_s(now))
    return path_within(entry.path, folder), size_text(entry.size), age, *held, _state_text(entry)


def _state_text(entry: Entry) -> str:
    problems = list(entry.problems[:_MAX_PROBLEMS])
    if len(entry.problems) > _MAX_PROBLEMS:
        problems.append(f"and {len(entry.problems) - _MAX_PROBLEMS} more")
    return f"{entry.state}: {'; '.join(problems)}" if problems else entry.state


@cli.command("show")
@click.argument("path", type=_FOLDER)
@_json_option("one object with manifest and groups")
def show(path: Path, *, as_json: bool) -> None:
    """Show what a snapshot holds.

    PATH is a snapshot, a trainer checkpoint, or the folder of a run for what a start would restore.
    """
    found = _one_of(path)
    manifest, groups, sidecars = read_contents(found)
    if as_json:
        content = {"path": str(found), "manifest": json.loads(manifest.to_json()), "groups": list(map(asdict, groups))}
        _echo_json_lines([{**content, "dropped": list(sidecars.dropped)}])
        return
    fields = {name: value for name, value in vars(manifest).items() if name not in ("counts", "files")}
    fields["created"] = time_text(manifest.created)
    fields |= {**asdict(manifest.counts), "files": len(manifest.files), "size": size_text(manifest.total_bytes)}
    _echo_lines(field_lines({"path": found, **fields, "dropped prompts": len(sidecars.dropped)}))
    click.echo()
    _echo_lines(
        table_lines(("file", "size", "digest"), [(f.path, size_text(f.size), f.digest) for f in manifest.files])
    )
    click.echo()
    header = ("group", "state", "generations", "prompt", "task", "target step", "weights")
    _echo_lines(table_lines(header, list(map(_group_cells, groups))))


def _one_of(path: Path) -> Path:
    if not _is_run(path):
        return path
    found = explain(path, RolloutCheckpointConfig()).source.path
    if found is None:
        raise ValueError(f"{path} has no rollout state that a start would restore")
    return found


def _is_run(path: Path) -> bool:
    """Whether it is the folder of a run, and not one snapshot or trainer checkpoint in it."""
    if is_snapshot(path) or is_trainer_checkpoint(path):
        return False
    if not is_checkpoint_folder(path):
        raise click.UsageError(f"{path} is no snapshot, no trainer checkpoint, and no folder of checkpoints")
    return True


def _group_cells(group: GroupSummary) -> tuple[object, ...]:
    weights = (group.target_step, group.start_weight)
    return group.group_id, group.state, group.siblings_text, group.prompt, group.task, *weights


@cli.command("verify")
@click.argument("paths", type=_FOLDER, nargs=-1, required=True, metavar="PATH...")
@_json_option("one object a line for each")
def verify(paths: tuple[Path, ...], *, as_json: bool) -> int:
    """Check every file against the digests of its manifest.

    PATH is a snapshot, a trainer checkpoint (its rollout state), or the folder of a run for everything in it. Exit code
    1 if something is damaged. What was never published is no damage.
    """
    code, now = 0, time.time()
    runs = [_is_run(path) for path in paths]  # first: a word that is wrong is said before hours of reading
    for entry in (entry for path, is_run in zip(paths, runs, strict=True) for entry in _entries(path, is_run=is_run)):
        if entry.state in ("damaged", "newer format"):
            code = 1
        if as_json:
            _echo_json_lines([entry.to_json(now)])
        else:
            click.echo(printable(f"{entry.path}: {_state_text(entry)}"))
    return code


def _entries(path: Path, *, is_run: bool) -> Iterable[Entry]:
    return list_entries(path, digests=True) if is_run else [look_at(path, digests=True)]


@cli.command("explain")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--restore-mode",
    type=click.Choice(["latest", "trainer_checkpoint", "fresh"]),
    default="latest",
    show_default=True,
    help="As in the run's config.",
)
@_json_option("one object; with `error` where a start would refuse")
def explain_(folder: Path, *, restore_mode: Any, as_json: bool) -> int:
    """Say what a start from FOLDER would restore, and why nothing newer.

    Every byte of what it would restore is read. Whether the run's config is the same is not looked at. Exit code 1 if
    a start would refuse.
    """
    try:
        found = explain(folder, RolloutCheckpointConfig(restore_mode=restore_mode))
    except ValueError as error:
        if not as_json:
            raise
        _echo_json_lines([{"error": str(error)}])
        return 1
    if as_json:
        _echo_json_lines([found.to_json()])
    else:
        _echo_lines(_explanation_lines(found, folder))
    return 0


def _explanation_lines(found: Explanation, folder: Path) -> Iterable[str]:
    source = found.source
    within = [None if path is None else path_within(path, folder) for path in (source.anchor, source.path)]
    fields: dict[str, object] = {"weights": within[0] or "none: a fresh run", "rollouts": within[1] or "none"}
    if found.manifest is not None:
        counts = asdict(found.manifest.counts).items()
        fields["holds"] = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts)
        fields["age"] = age_text(max(0.0, time.time() - found.manifest.created))
    if source.anchor is not None:
        fields |= {"train step": source.train_steps, "epoch": source.current_epoch}
        fields["last batch"] = source.sampler_dispatch_index
    yield from field_lines(fields)
    for item in found.skipped:
        yield printable(f"passed over: {path_within(item.path, folder)}: {item.reason}")
    for warning in source.warnings:
        yield printable(f"warning: {warning}")


@cli.command("prune")
@click.argument("folder", type=_FOLDER)
@click.option("--keep-latest-k", type=click.IntRange(min=1), required=True, metavar="K", help="Snapshots that stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_json_option("one object")
def prune(folder: Path, *, keep_latest_k: int, dry_run: bool, as_json: bool) -> None:
    """Remove older snapshots.

    The K newest complete snapshots of the newest trainer checkpoint stay; all of older ones go, and so does what was
    never published. Trainer checkpoints stay. Refused while a run holds FOLDER.
    """
    if not _is_run(folder):
        raise click.UsageError(f"{folder} is not the folder of a run: give the one above it")
    gone = prune_folder(folder, keep_latest_k, dry_run=dry_run)
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
