"""`bertie serve` in a separate process."""

import re
import subprocess
import sys
from contextlib import contextmanager
from threading import Timer

SERVE = [sys.executable, "-m", "bertie.commands.main", "serve"]


@contextmanager
def serving(*arguments):
    """Start a server; yield its process, and the port that it prints."""
    command = [*SERVE, *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        alarm = Timer(120, process.kill)  # if the line with the address never comes
        alarm.start()
        try:
            printed = []
            address = None
            while not address and (line := process.stderr.readline()):
                printed.append(line)
                address = re.search(r"http://127\.0\.0\.1:(\d+) serves", line)
            alarm.cancel()
            assert address, "".join(printed)
            yield process, int(address[1])
        finally:
            alarm.cancel()
            process.kill()
