#!/usr/bin/env bash
# Submits a samovar command to a Spark cluster, with the Python environment that its executors need.
#
#   deploy/spark-submit.sh --master URL [--conf KEY=VALUE]... [--packed FILE] COMMAND...
#
#   deploy/spark-submit.sh --master yarn restore service.yml --engine spark --staging /shared/staging
#
# Native wheels (RocksDB, the Kafka client, our kernel) cannot travel as a zip on the PYTHONPATH: the environment is
# packed once as an archive, which Spark unpacks next to every executor. It must have been made on a machine like theirs.
# `--packed` names an archive that is there already; otherwise one is made of the environment that `samovar` is in.
set -euo pipefail

fail() { echo "spark-submit: $1" >&2; exit 2; }

master= packed=
confs=()
while [ $# -gt 0 ]; do
  case "$1" in
    --master) [ $# -ge 2 ] || fail "--master needs a URL"; master=$2; shift 2 ;;
    --conf) [ $# -ge 2 ] || fail "--conf needs KEY=VALUE"; confs+=(--conf "$2"); shift 2 ;;
    --packed) [ $# -ge 2 ] || fail "--packed needs a file"; packed=$2; shift 2 ;;
    *) break ;;
  esac
done
[ -n "$master" ] || fail "say where: --master yarn, spark://HOST:7077, k8s://URL, or local[*]"
[ $# -gt 0 ] || fail "say what: restore service.yml --engine spark --staging PATH"

python=${PYTHON:-$(command -v python3)}
"$python" -c 'import samovar, pyspark' 2>/dev/null \
  || fail "$python has no samovar with pyspark: pip install 'samovar[spark]', or set PYTHON to one that has"
submit=$("$python" -c 'import pyspark, pathlib; print(pathlib.Path(pyspark.__file__).parent / "bin" / "spark-submit")')
here=$(cd "$(dirname "$0")" && pwd)
quiet="-Dlog4j2.configurationFile=file:$here/spark-log4j2.properties"

archives=()
case "$master" in
  local|local\[*) export PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python" ;;  # executors are this process
  *)
    if [ -z "$packed" ]; then
      packed="${TMPDIR:-/tmp}/samovar-environment-$(id -u).tar.gz"
      prefix=$("$python" -c 'import sys; print(sys.prefix)')
      installed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
      if [ ! -e "$packed" ] || [ "$prefix/pyvenv.cfg" -nt "$packed" ] || [ "$installed" -nt "$packed" ]; then
        "$python" -c 'import venv_pack' 2>/dev/null || fail "pip install venv-pack packs the environment; or give --packed"
        echo "spark-submit: packing $prefix into $packed (until something else is installed in it)" >&2
        # Spark's own jars are on the cluster, and would be two thirds of it.
        "$python" -m venv_pack --prefix "$prefix" --output "$packed.part.tar.gz" --exclude '*/pyspark/jars/*' --force --quiet
        mv "$packed.part.tar.gz" "$packed"
      fi
    fi
    [ -r "$packed" ] || fail "$packed cannot be read"
    archives=(--archives "$packed#environment")
    export PYSPARK_PYTHON=./environment/bin/python PYSPARK_DRIVER_PYTHON="$python"
    ;;
esac

# A driver that is running takes no more jars: the Kafka connector's are named here.
jars=()
case "${confs[*]-}" in
  *spark.jars=*|*spark.jars.packages=*) ;;
  *) found=$("$python" -m samovar.changelog.spark.jars) || fail "without the Kafka connector's jars; or name them: --conf spark.jars=..."
     [ -z "$found" ] || jars=(--jars "$found") ;;  # another Spark than the connector's needs none
esac

exec "$submit" --master "$master" --driver-java-options "$quiet" \
  ${jars[@]+"${jars[@]}"} ${archives[@]+"${archives[@]}"} ${confs[@]+"${confs[@]}"} "$here/spark_main.py" "$@"
