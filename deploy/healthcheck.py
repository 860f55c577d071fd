"""Exit code 0 where the HTTP process of this container answers, 1 where it does not. Standard library only.

The address is that of SAMOVAR_RUN__HTTP; a container without one is well as long as it runs.
"""

from __future__ import annotations

import os
import sys
from urllib.error import URLError
from urllib.request import urlopen

TIMEOUT_S = 5.0


def main() -> int:
    address = os.environ.get("SAMOVAR_RUN__HTTP", "")
    if not address:
        return 0
    try:
        # A fixed scheme and host: nothing but the port is taken from outside.
        with urlopen(f"http://127.0.0.1:{int(address.rpartition(':')[2])}/live", timeout=TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except (URLError, OSError, ValueError) as error:
        sys.stderr.write(f"not live: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
