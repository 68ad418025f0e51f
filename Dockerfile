# The server: dashboard, ingest, store and alerts. It needs no GPU and no ROCm; see Dockerfile.rocm for a trainer.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY server server
COPY web web
RUN python -m venv /opt/floatscope \
    && /opt/floatscope/bin/pip install --no-cache-dir ".[server,postgres]" \
    && /opt/floatscope/bin/pip uninstall --yes pip setuptools

FROM python:3.12-slim
RUN python -m pip uninstall --yes pip \
    && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/floatscope /opt/floatscope
ENV PATH=/opt/floatscope/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FLOATSCOPE_HOST=0.0.0.0 \
    FLOATSCOPE_PORT=6160 \
    FLOATSCOPE_DATA=/data
# A number, so that an orchestrator can see that it is not root.
USER 10001:10001
VOLUME /data
EXPOSE 6160
# No spaces inside an argument: older podman splits there.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=6 CMD ["python", "-m", "floatscope_server.probe"]
ENTRYPOINT ["floatscope"]
CMD ["server", "--token-file", "/data/tokens"]
