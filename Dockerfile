# Image with Backhaul and Dask. It needs a wheel in dist/ (`make wheel` or `make wheels`):
#
#   docker build --tag backhaul .
#   docker run --network host backhaul                                             # a scheduler
#   docker run --network host backhaul dask backhaul worker tcp://SCHEDULER:8786   # the workers that fit
#
# There is no entry point: manifests for Kubernetes name the whole command, as with Dask's images.
# Dask's Helm chart starts `dask-scheduler` and `dask-worker`, which newer releases of Dask do not have.
# Another base may be given (`--build-arg BASE=…`): glibc 2.28 or later with Python 3.11 or later.
ARG BASE=docker.io/library/python:3.13-slim-bookworm
FROM ${BASE}

ENV PATH=/opt/backhaul/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    BACKHAUL_HEALTH_URL=http://127.0.0.1:8787/health

# The packages have exact versions and hashes; the wheel comes from dist/ alone, so its version is that one
# hadolint ignore=DL3013
RUN --mount=type=bind,source=requirements,target=/build/requirements \
    --mount=type=bind,source=dist,target=/build/dist \
    python3 -m venv /opt/backhaul \
    && pip install --no-cache-dir --disable-pip-version-check --require-hashes \
       --requirement /build/requirements/hashed/image.txt \
    && pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index \
       --find-links /build/dist backhaul \
    && pip check \
    && for part in scheduler worker; do \
         printf '#!/bin/sh\nexec dask %s "$@"\n' "$part" > "/opt/backhaul/bin/dask-$part" \
         && chmod 755 "/opt/backhaul/bin/dask-$part" || exit 1; \
       done \
    && useradd --create-home --uid 10001 backhaul

USER 10001:10001
WORKDIR /home/backhaul

# Addresses of a scheduler: Dask's, Backhaul's, the dashboard
EXPOSE 8786 8785 8787

# The page that Dask's servers answer while their event loop runs. Workers have it at the address of
# --dashboard-address; `--env BACKHAUL_HEALTH_URL=` (empty) switches the check off
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as r; url = os.environ['BACKHAUL_HEALTH_URL']; url and r.urlopen(url, timeout=5).read()"]

CMD ["dask", "backhaul", "scheduler"]
