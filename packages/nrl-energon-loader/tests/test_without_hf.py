"""Without the extra [hf]: the loader imports, and an encoder of one's own works with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HF = ("transformers", "tokenizers", "jinja2")

BLOCKED = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HF}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""

ENCODER = """
import torch
from nrl_energon_loader.encoders.base import BaseSFTTaskEncoder
from nrl_energon_loader.samples import EncodedSFTSample

class Letters(BaseSFTTaskEncoder):
    def encode_conversation(self, sample):
        log = [{**message, "token_ids": torch.tensor(list(message["content"].encode()))} for message in sample.messages]
        return EncodedSFTSample.of(sample, log)
"""

LOADER = """
import pathlib, json
from nrl_energon_loader import build_energon_sft_loader
from nrl_energon_loader.prepare import prepare_dataset
folder = pathlib.Path(sys.argv[1])
prepare_dataset(folder / "conversations.jsonl", folder / "dataset")
def build(**settings):
    energon = {"num_workers": 0, "task_encoder": f"{folder}/letters.py:Letters", **settings}
    return build_energon_sft_loader(
        data_config={"energon": energon, "shuffle": False},
        source={"path": str(folder / "dataset"), "split": "train"},
        processor=None, batch_size=2, max_sequence_length=16, split_role="validation", logical_rank=0,
        logical_world_size=1, placement_fingerprint="one", packing_algorithm=None, max_sequences_per_bin=None,
        sequence_length_pad_multiple=1, only_unmask_final=False,
    )
with build() as loader:
    print([row[0]["token_ids"].tolist() for batch in loader for row in batch["message_log"]])
try:
    build(task_encoder="generic_sft")
except ValueError as error:
    print(error)
"""


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCKED + code, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_loader_imports_and_runs_an_own_encoder(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("ab", "c", "d")]
    (tmp_path / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "letters.py").write_text(ENCODER)
    *_, letters, refusal = run(LOADER, str(tmp_path)).splitlines()
    assert letters == "[[97, 98], [99], [100]]"
    assert refusal == "generic_sft has processor None; allowed: a Hugging Face processor or tokenizer"


@pytest.mark.slow
def test_no_part_but_the_adapter_imports_the_extra() -> None:
    parts = ("build", "cli", "cookers.conversation", "encoders.generic_sft", "registry", "resume_check", "sft_batch")
    run("".join(f"import nrl_energon_loader.{part}\n" for part in parts))
    code = "from nrl_energon_loader.registry import PROCESSOR_ADAPTERS\nPROCESSOR_ADAPTERS.resolve('hf_multimodal')"
    with pytest.raises(AssertionError, match=r"No module named 'jinja2'\): pip install nrl-energon-loader\[hf\]"):
        run(code)
