# The images of EpochMQ: build one with `--target broker`, `controller`, `operator` or `spark`. BASE is any Debian with
# Python 3.11 or newer and its venv module. What is installed is pinned by the lock files, each file by its hash.
ARG BASE=python:3.11-slim-bookworm

# What builds: pip, and the build backend that pyproject.toml names.
FROM ${BASE} AS tools
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements-build.lock ./
RUN python3 -m venv tools && tools/bin/pip install --quiet --require-hashes -r requirements-build.lock

FROM tools AS wheel
COPY . ./
RUN tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels .

# What brokers, controllers and nameservers need. pip installs into it from outside, and is not in it.
FROM tools AS runtime-packages
COPY requirements-runtime.lock ./
RUN python3 -m venv --without-pip /opt/epochmq \
    && tools/bin/pip --python /opt/epochmq/bin/python install --quiet --require-hashes -r requirements-runtime.lock

# EpochMQ itself has a folder of its own, so that a new release is a small layer over the packages of the old one.
FROM runtime-packages AS runtime-installed
COPY --from=wheel /build/wheels wheels
RUN tools/bin/pip --python /opt/epochmq/bin/python install --quiet --no-deps --prefix /installed wheels/*.whl

# Everything runs as this user, whose files are in two places: both are volumes, the rest is read-only.
FROM ${BASE} AS user
RUN groupadd --gid 10001 epochmq \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/epochmq --shell /usr/sbin/nologin epochmq \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/epochmq /run/epochmq
ENV PATH=/opt/epochmq/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /var/lib/epochmq

FROM user AS runtime
COPY --from=runtime-packages /opt/epochmq /opt/epochmq
COPY --from=runtime-installed /installed /opt/epochmq
USER 10001:10001
ENTRYPOINT ["epochmq"]

# A nameserver is a controller image's `epochmq nameserver`.
FROM runtime AS controller
CMD ["controller"]

FROM runtime AS broker
CMD ["broker"]

FROM tools AS operator-packages
COPY requirements-operator.lock ./
RUN python3 -m venv --without-pip /opt/epochmq \
    && tools/bin/pip --python /opt/epochmq/bin/python install --quiet --require-hashes -r requirements-operator.lock

FROM operator-packages AS operator-installed
COPY --from=wheel /build/wheels wheels
RUN tools/bin/pip --python /opt/epochmq/bin/python install --quiet --no-deps --prefix /installed wheels/*.whl

FROM user AS operator
COPY --from=operator-packages /opt/epochmq /opt/epochmq
COPY --from=operator-installed /installed /opt/epochmq
USER 10001:10001
ENTRYPOINT ["epochmq"]
CMD ["operator"]

FROM tools AS spark-packages
COPY requirements-spark.lock ./
RUN python3 -m venv --without-pip /opt/epochmq \
    && tools/bin/pip --python /opt/epochmq/bin/python install --quiet --require-hashes -r requirements-spark.lock

# What is compiled here need not be where it runs, on machines of this kind. numba knows what it compiled by the place
# and the time of the source.
FROM spark-packages AS spark-installed
COPY --from=wheel /build/wheels wheels
RUN tools/bin/pip --python /opt/epochmq/bin/python install --quiet --no-deps --prefix /installed wheels/*.whl \
    && cp -R -p /installed/. /opt/epochmq \
    && NUMBA_CACHE_DIR=/installed/numba /opt/epochmq/bin/python3 -m epochmq_spark.decode.precompile

# Of audits: `driver`, `reader` and `executor` are what their pods run; anything else is the command.
FROM user AS java
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update --quiet \
    && apt-get install --yes --quiet --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

FROM java AS spark
COPY --from=spark-packages /opt/epochmq /opt/epochmq
COPY --from=spark-installed /installed /opt/epochmq
COPY --chmod=0755 images/spark-entrypoint.sh /usr/local/bin/spark-entrypoint
# The application for `spark-submit` and SparkApplication: local:///opt/epochmq/audit.py
COPY spark/epochmq_spark/spark_submit.py /opt/epochmq/audit.py
USER 10001:10001
ENTRYPOINT ["spark-entrypoint"]
CMD ["audit", "--help"]
