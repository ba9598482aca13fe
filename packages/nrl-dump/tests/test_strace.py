"""The list of operations that the crash tests go through is the whole list: strace sees no other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
import torch
from nrl_dump import TrainDataDump
from nrl_interfaces.testing.faults import RecordingOps

torch.set_num_threads(1)
folder, record = Path(sys.argv[1]), Path(sys.argv[2])
ops = RecordingOps()
for attempt in ("old", "new"):
    for shard_id in ("0", "1"):
        dump = TrainDataDump(folder / "log", shard_id=shard_id, keep_last=1, file_ops=ops)
        for i in range(2):
            dump.add_chunk(
                step=1,
                sample_ids=[f"{attempt}{i}"],
                tags=None,
                input_lengths=torch.tensor([1]),
                sequences={"t": torch.tensor([[i]])},
                scalars={},
            )
        dump.flush(1)
    dump.finish_step(1, 4)
record.write_text("\\n".join(name for name, _ in ops.calls))
"""

CHANGES_FILES = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,"
    "sync_file_range,sync,syncfs,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,"
    "symlinkat,sendfile,copy_file_range,splice,mknod,mknodat"
)


def operations_in(trace: str, folder: Path) -> list[str]:
    """The operations on files below `folder`, by the names that `FileOps` has for them."""
    names: list[str] = []
    for line in trace.splitlines():
        match = re.match(r"(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)", line)
        if match is None or str(folder) not in line or " = -1 " in line:
            continue
        call, rest = match[1], match[2]
        if call in {"open", "openat", "openat2", "creat"}:
            if re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", rest) or call == "creat":
                names.append("open")
        elif call == "fsync":
            names.append("fsync_folder" if rest.split(">")[0].endswith("/log") or f"<{folder}>" in rest else "fsync")
        elif call == "unlinkat":
            names.append("rmdir" if "AT_REMOVEDIR" in rest else "unlink")
        else:
            names.append({"ftruncate": "truncate", "renameat": "rename", "renameat2": "rename"}.get(call, call))
    return names


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed here; CI installs it")
def test_strace_sees_the_operations_that_fileops_recorded_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "traced"
    folder.mkdir()
    record, trace = tmp_path / "record", tmp_path / "trace"
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", f"trace={CHANGES_FILES}", "-o", str(trace)]
    code = [sys.executable, "-c", SCRIPT, str(folder), str(record)]
    done = subprocess.run([*command, *code], capture_output=True, text=True, timeout=300, check=False)
    if "PTRACE" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine does not let a process be traced")  # a container's rule, not ours
    assert done.returncode == 0, done.stderr
    recorded = record.read_text().splitlines()
    assert operations_in(trace.read_text(), folder) == recorded
    assert {"mkdir", "open", "write", "truncate", "fsync", "rename", "unlink", "fsync_folder"} == set(recorded)
