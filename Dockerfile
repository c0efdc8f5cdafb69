# docker build -t nemo-gym .
# docker run --rm nemo-gym ng_version
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist

FROM python:3.13-slim
RUN useradd --create-home gym
COPY --from=build /dist /dist
RUN pip install --no-cache-dir /dist/*.whl && rm -r /dist
USER gym
WORKDIR /home/gym
CMD ["ng", "help"]
