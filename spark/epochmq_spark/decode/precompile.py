"""`python -m epochmq_spark.decode.precompile`: compiles the walk for this type of processor into the folder
that `NUMBA_CACHE_DIR` names. The image is built with it, so that executors start without compiling."""

from __future__ import annotations

import numpy as np

from epochmq_protocol import message
from epochmq_protocol.message_const import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from epochmq_spark.decode import walk as w
from epochmq_spark.decode.index_chains import IndexChains
from epochmq_spark.decode.log_digests import LogDigests
from epochmq_spark.decode.message_columns import properties as read_properties
from epochmq_spark.decode.message_columns import texts
from epochmq_spark.decode.queue_units import QueueUnits
from epochmq_spark.decode.summary_rows import (
    SummaryKind,
    SummaryRows,
    add_digests,
    add_index_keys,
    add_spans,
    add_units,
    spans_of,
)
from epochmq_spark.decode.unit_columns import decode_units


def main() -> None:
    """Makes every compiled function that an audit calls read one message, from writable and from read-only
    memory: numba compiles each function once for each."""
    properties = message.format_properties(
        {PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: "K", PROPERTY_KEYS: "a b", PROPERTY_TAGS: "t"}
    )
    record = message.encode_record(message.MessageExt("warm", bytes(300), properties))
    for data in (np.frombuffer(record, np.uint8), np.frombuffer(bytearray(record), np.uint8)):
        rows = np.zeros((4, w.COLUMNS), np.int64)
        spans = np.zeros((4, w.SPAN_COLUMNS), np.int64)
        state = np.zeros(w.STATE_SIZE, np.int64)
        w.walk(data, 0, len(data), 0, len(data), 0, w.NEED_ALL, rows, spans, state)
        out = SummaryRows("warm", "warm")
        w.read_records(data, np.zeros(1, np.int64), 0, len(data), 0, w.NEED_ALL, rows)
        texts(data, rows[:1, w.TOPIC_AT], rows[:1, w.TOPIC_SIZE])
        read_properties(data, rows[:1])
        digests = LogDigests(0, len(data))
        digests.add(data, rows[: state[w.RECORDS]], 0)
        add_digests(out, digests)
        add_spans(out, spans_of(spans[: state[w.SPANS]], 0))
        one = np.ones(1, np.int64)
        add_units(out, "warm", 0, QueueUnits(one - 1, one - 1, one, one), 0)
        add_index_keys(out, one, one, SummaryKind.KEYS_BY_LOG)
        w.unit_digests(one, one, one, one, one.copy())
        decode_units(data, 0)
        IndexChains(1).follow(1, data)
        out.batch()


if __name__ == "__main__":
    main()
