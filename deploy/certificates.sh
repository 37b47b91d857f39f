#!/usr/bin/env bash
# An authority of your own and one certificate that scheduler, workers and clients share:
#
#     bash deploy/certificates.sh FOLDER [DAYS]
#
# Writes ca.pem, ca-key.pem, node.pem and node-key.pem; refuses to overwrite. Dask checks that
# the other side's certificate is the authority's, not which host it names.
set -euo pipefail

folder=${1:?give the folder to write to}
days=${2:-30}
mkdir -p "$folder"
cd "$folder"
if [[ -e ca.pem || -e node.pem ]]; then
    echo "found certificates in $folder; give an empty folder" >&2
    exit 1
fi
umask 077
openssl=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days "$days")
"${openssl[@]}" -keyout ca-key.pem -out ca.pem -subj "/CN=fpmdask authority" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" 2>log ||
    { cat log >&2; exit 1; }
"${openssl[@]}" -CA ca.pem -CAkey ca-key.pem -keyout node-key.pem -out node.pem \
    -subj "/CN=fpmdask node" -addext "basicConstraints=critical,CA:FALSE" \
    -addext "keyUsage=critical,digitalSignature" \
    -addext "extendedKeyUsage=serverAuth,clientAuth" 2>log ||
    { cat log >&2; exit 1; }
rm log
