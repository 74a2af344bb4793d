#!/bin/sh
# docker/wheel.sh WHEEL FOLDER: the wheel that an image installs, as it is given or built here.
set -eu
mkdir -p "$2"
if [ -n "$1" ]; then
    cp "$1" "$2/"
    exit
fi
command -v cargo > /dev/null || {
    echo "error: BUILD_IMAGE has no Rust; name an image that has (rust:1-bookworm), or a wheel: --build-arg WHEEL=dist/…" >&2
    exit 1
}
apt-get update
apt-get install --yes --no-install-recommends python3-venv
python3 -m venv /tmp/build
/tmp/build/bin/pip install --disable-pip-version-check "maturin>=1.9.4,<2"
/tmp/build/bin/maturin build --profile dist --out "$2"
