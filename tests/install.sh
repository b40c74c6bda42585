#!/usr/bin/env bash
# Installs what the tests need and pip does not bring, where it is missing: the real clients
# mosquitto-clients (Debian) and MQTT.js (npm), the module that makes a virtual environment, a C compiler
# with Python's headers for the compiled build, OpenSSL with its own for tests/benchmarks, for tests/spark Java
# and Chromium, and for tests/faults also libfaketime and iproute2 (for networks that lose packets).
set -euo pipefail
cd "$(dirname "$0")/end_to_end/js"

missing=()
command -v mosquitto_pub >/dev/null || missing+=(mosquitto-clients)
PATH=$PATH:/usr/sbin command -v mosquitto >/dev/null || missing+=(mosquitto)
command -v node >/dev/null || missing+=(nodejs)
"${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v npm >/dev/null || missing+=(npm)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
headers='import os, sys, sysconfig; sys.exit(not os.path.isfile(sysconfig.get_path("include") + "/Python.h"))'
"${PYTHON:-python3}" -c "$headers" || missing+=(python3-dev)
command -v openssl >/dev/null || missing+=(openssl)
[ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
command -v ip >/dev/null || missing+=(iproute2)
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
command -v java >/dev/null || [ -x "${JAVA_HOME:-}/bin/java" ] || missing+=(openjdk-17-jre-headless)
compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || missing+=(libfaketime)

if [ "${#missing[@]}" -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "the tests need ${missing[*]}: install them (Debian: sudo apt-get install ${missing[*]}) and try again" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    npm ci --no-audit --no-fund
fi
