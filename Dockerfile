# The server on a CPU: docker build -t pretune . && docker run -p 127.0.0.1:8000:8000 -v ./runs/books:/models/model:ro pretune
FROM python:3.11-slim

# torch for CPUs; the wheels of the package index need CUDA on x86-64.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=serve

WORKDIR /opt/pretune
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" torch
COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

RUN useradd --create-home pretune
USER pretune
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["pretune"]
CMD ["serve", "model=/models/model", "--host", "0.0.0.0", "--port", "8000"]
