"""Arrow's types of the columns. Apart from the rest, which is of use without pyarrow too."""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")
TEXT, LONG, INT, DOUBLE, FLAG, BYTES = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.binary()
