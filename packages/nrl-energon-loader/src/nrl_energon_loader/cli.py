"""The command `nrl-energon-loader`: its words and options.

Exit codes: 0, all is well; 1, an error, one line on stderr, or `diff` or `check-resume` found something; 2, the command
was called wrongly; 130, Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import torch
from nrl_interfaces.fileops import FileOps
from nrl_interfaces.identity import differences
from nrl_interfaces.publish import stage

from nrl_energon_loader import __version__
from nrl_energon_loader.build import build_energon_sft_loader
from nrl_energon_loader.loader import EnergonSFTDataLoader, check_format
from nrl_energon_loader.prepare import prepare_dataset
from nrl_energon_loader.resume_check import RecordedRun, check_resume, compare_run, record_run

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False)
_AT_LEAST_1 = click.IntRange(min=1)


def main() -> None:
    """Run the command with the process's arguments, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run the command and return its exit code; see the module for those there are."""
    stdout: Any = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")  # paths hold more than some terminals' encodings
    try:
        code: Any = cli.main(list(args), prog_name="nrl-energon-loader", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (OSError, ValueError, ImportError) as error:
        click.echo(f"nrl-energon-loader: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="nrl-energon-loader")
def cli() -> None:
    """Prepare datasets for nrl-energon-loader, look at its states, and check that a resume is exact."""


def _json_option(what: str) -> Callable[[_Function], _Function]:
    return click.option("--json", "as_json", is_flag=True, help=f"For machines: {what}.")


@cli.command("prepare")
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--split", "splits", multiple=True, metavar="NAME=SHARE", help="A split; may be repeated.")
@click.option("--shard-size", type=_AT_LEAST_1, default=1000, show_default=True, help="Conversations in a shard.")
@click.option("--subflavor", "subflavors", multiple=True, metavar="KEY=VALUE", help="For cookers; may be repeated.")
@_json_option("one object")
def prepare(
    source: Path,
    target: Path,
    *,
    splits: tuple[str, ...],
    shard_size: int,
    subflavors: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a dataset of conversations.

    SOURCE is a .jsonl file with a conversation a line, or a folder with such files and .json files of one conversation.
    Each is an object with "messages", and may have "media" (paths beside the file) and "tools". TARGET must not be
    there yet; it appears whole.
    """
    shares = {name: _number(share, name) for name, share in map(_pair, splits)} if splits else None
    prepared = prepare_dataset(
        source, target, splits=shares, shard_size=shard_size, subflavors=dict(map(_pair, subflavors))
    )
    if as_json:
        _echo_json({**dataclasses.asdict(prepared), "path": str(prepared.path)})
        return
    counts = ", ".join(f"{name} {number}" for name, number in prepared.conversations.items())
    click.echo(f"{prepared.path}: {counts} conversations, {prepared.shards} shards")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} has another form; allowed: NAME=VALUE")
    return name, value


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"the share of {name!r} is {text!r}; allowed: a number") from None


@cli.command("info")
@click.argument("state", type=_FILE)
@_json_option("one object, without Energon's part")
def info(state: Path, *, as_json: bool) -> None:
    """Say what a saved state holds.

    STATE is a file that torch.save wrote of what state_dict gave.
    """
    loaded = _load_state(state)
    if as_json:
        _echo_json({key: value for key, value in loaded.items() if key != "loader_state"})
        return
    counters: dict[str, Any] = loaded["counters"]
    click.echo(f"{state}: epoch {counters['epoch']}, behind batch {counters['batches_in_epoch']} of it")
    batches, samples, skipped = (counters[name] for name in ("batches", "samples", "skipped"))
    click.echo(f"delivered  {batches} batches, {samples} samples, {skipped} skipped")
    for name, number in sorted(counters["samples_by_source"].items()):
        click.echo(f"  {name}: {number} samples, {counters['skipped_by_source'].get(name, 0)} skipped")
    click.echo(f"fingerprint  {loaded['fingerprint']}")
    _echo_lines(f"  {line.replace('<missing> -> ', '')}" for line in differences({}, loaded["identity"]))


@cli.command("diff")
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@_json_option("one object")
def diff(first: Path, second: Path, *, as_json: bool) -> int:
    """Say how two saved states differ, one line a leaf; exit code 1 if they do.

    First what they belong to, then how far they are.
    """
    states = [_load_state(path) for path in (first, second)]
    found = {part: differences(states[0][part], states[1][part]) for part in ("identity", "counters")}
    found["position"] = [] if states[0]["digest"] == states[1]["digest"] else ["the states differ"]
    if as_json:
        _echo_json(found)
    else:
        lines = [*found["identity"], *(f"counters.{line}" for line in found["counters"])]
        _echo_lines(lines or found["position"] or ["equal"])
    return int(any(found.values()))


@cli.command("check-resume")
@click.argument("dataset", type=click.Path(exists=True))
@click.option("--split", help="The split. Default: train, or val with --validation.")
@click.option("--validation", is_flag=True, help="Read as a validation does: in one order.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Training: shuffle.")
@click.option("--batch-size", type=_AT_LEAST_1, default=4, show_default=True)
@click.option("--num-workers", type=click.IntRange(min=0), default=2, show_default=True)
@click.option("--virtual-epoch-length", type=_AT_LEAST_1, help="Batches of an epoch. Default: one pass.")
@click.option("--packing", help="A packing algorithm, such as first_fit_decreasing. Default: no packing.")
@click.option("--max-sequence-length", type=_AT_LEAST_1, default=1 << 16, show_default=True, help="Tokens, here bytes.")
@click.option("--task-encoder", default="utf8_bytes", show_default=True, help="A key, or /absolute/file.py:Name.")
@click.option("--cooker", default="generic_conversation", show_default=True, help="A key, or /absolute/file.py:name.")
@click.option("--stop-after", type=click.IntRange(min=0), default=8, show_default=True, help="Batches before the stop.")
@click.option("--compare", type=_AT_LEAST_1, default=32, show_default=True, help="Batches behind it.")
@click.option("--save", type=_FILE, help="Only run and stop, and write the position and what comes behind it here.")
@click.option("--resume", type=_FILE, help="Only resume, in this process, from what --save wrote.")
@_json_option("one object")
def check(
    dataset: str,
    *,
    stop_after: int,
    compare: int,
    save: Path | None,
    resume: Path | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Check that a resume gives the batches of a run that was not stopped.

    DATASET is a prepared folder or a metadataset's .yaml file. Conversations are read as their bytes unless
    --task-encoder names another way. --save now and --resume later check across processes, and whether the data is
    still the same. Exit code 1 if a batch differs, or the state is refused.
    """
    if save and resume:
        raise click.UsageError("--save and --resume are given; allowed: one of them")
    make_loader = partial(_loader, dataset, settings)
    if save:
        recorded = record_run(make_loader, stop_after=stop_after, compare=compare)
        with stage(save, FileOps()) as file:
            torch.save(dataclasses.asdict(recorded), cast("Any", file))
            file.commit()
        click.echo(f"{save}: the position behind batch {stop_after}, and {compare} batches to compare")
        return 0
    if resume:
        report = compare_run(make_loader, _load_recorded(resume))
    else:
        report = check_resume(make_loader, stop_after=stop_after, compare=compare)
    if as_json:
        _echo_json({**dataclasses.asdict(report), "exact": report.exact})
    elif report.exact:
        click.echo(f"exact: {report.compared} batches behind batch {report.stopped_after} are the same")
    else:
        _echo_lines(report.differences)
    return int(not report.exact)


def _loader(dataset: str, settings: dict[str, Any]) -> EnergonSFTDataLoader:
    return build_energon_sft_loader(
        data_config={
            "energon": {
                "num_workers": settings["num_workers"],
                "task_encoder": settings["task_encoder"],
                "cookers": [settings["cooker"]],
            },
            "shuffle": settings["shuffle"],
        },
        source={
            "path": dataset,
            "split": settings["split"],
            "virtual_epoch_length": settings["virtual_epoch_length"],
        },
        processor=None,
        batch_size=settings["batch_size"],
        max_sequence_length=settings["max_sequence_length"],
        split_role="validation" if settings["validation"] else "train",
        logical_rank=0,
        logical_world_size=1,
        placement_fingerprint="",
        packing_algorithm=settings["packing"],
        max_sequences_per_bin=None,
        sequence_length_pad_multiple=1,
        only_unmask_final=False,
    )


def _load_state(path: Path) -> dict[str, Any]:
    loaded = _load(path)
    try:
        check_format(loaded)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return loaded


def _load_recorded(path: Path) -> RecordedRun:
    loaded = _load(path)
    try:
        return RecordedRun(**loaded)
    except TypeError as error:
        raise ValueError(f"{path} is not what --save wrote ({error})") from error


def _load(path: Path) -> Any:
    try:
        return torch.load(path)
    except OSError:
        raise
    except Exception as error:  # torch raises what its reader and its unpickler come across
        raise ValueError(f"{path} can't be read; allowed: what torch.save wrote of plain data and tensors") from error


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _echo_json(thing: Any) -> None:
    click.echo(json.dumps(thing))  # ASCII only: no terminal, encoding or way of splitting lines harms it
