#!/usr/bin/env bash
# plain.sh with every connection encrypted and both its ends authenticated:
#
#     bash deploy/tls.sh FOLDER [options of `dask scheduler`]
#
# FOLDER holds ca.pem, node.pem and node-key.pem; certificates.sh makes them if they are missing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?give the folder of the certificates}
shift
[[ -e $folder/ca.pem ]] || bash "$here/certificates.sh" "$folder"
folder=$(cd "$folder" && pwd)

# Dask's configuration as variables; README.md has the same as a file.
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
export DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=tls
export DASK_DISTRIBUTED__COMM__TLS__CA_FILE=$folder/ca.pem
for role in SCHEDULER WORKER CLIENT; do
    export "DASK_DISTRIBUTED__COMM__TLS__${role}__CERT=$folder/node.pem"
    export "DASK_DISTRIBUTED__COMM__TLS__${role}__KEY=$folder/node-key.pem"
done
exec bash "$here/plain.sh" "$@"
