"""What importing nrl-interfaces costs beyond torch."""

import statistics
import subprocess
import sys

ROUNDS = 9
MODULES = ("batch", "layout", "packed", "publish", "identity", "metrics", "ownership", "fileops")
CODE = """
import time
import torch
began = time.perf_counter()
import nrl_interfaces
{more}
print(time.perf_counter() - began)
"""


def milliseconds(more: str) -> list[float]:
    command = [sys.executable, "-c", CODE.format(more=more)]
    runs = (subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(ROUNDS))
    return [1e3 * float(run.stdout) for run in runs]


if __name__ == "__main__":
    everything = "\n".join(f"import nrl_interfaces.{module}" for module in MODULES)
    print("## nrl-interfaces: import\n")
    print(f"Milliseconds beyond torch's own, {ROUNDS} new processes each, bytecode there. Aim: below 50.\n")
    print("| what | median (lowest to highest) |\n| --- | --- |")
    for name, more in (("import nrl_interfaces", ""), ("and all of its modules", everything)):
        values = milliseconds(more)
        print(f"| {name} | {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f}) |")
