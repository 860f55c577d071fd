"""Exit code 0 where the HTTP process of this container answers, 1 where it does not. Standard library only.

The address is that of SAMOVAR_RUN__HTTP; a container without one is well as long as it runs. With
SAMOVAR_HTTP__TLS__CERT it is asked over TLS; whose certificate that is does not matter: nothing leaves the machine.
"""

from __future__ import annotations

import os
import ssl
import sys
from urllib.error import URLError
from urllib.request import urlopen

TIMEOUT_S = 5.0


def main() -> int:
    address = os.environ.get("SAMOVAR_RUN__HTTP", "")
    if not address:
        return 0
    scheme, context = "http", None
    if os.environ.get("SAMOVAR_HTTP__TLS__CERT"):
        scheme, context = "https", ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        # One of two schemes and a fixed host: nothing but the port is taken from outside.
        url = f"{scheme}://127.0.0.1:{int(address.rpartition(':')[2])}/live"
        with urlopen(url, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310 - as above
            return 0 if answer.status == 200 else 1
    except (URLError, OSError, ValueError) as error:
        sys.stderr.write(f"not live: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
