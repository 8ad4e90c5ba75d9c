#!/bin/sh
# The entrypoint of the audit image. `driver --job` and `reader` run the pods of an audit, with their arguments. `driver`
# with other arguments and `executor` are the commands that Spark on Kubernetes requires of an image; Spark configures
# them by SPARK_* variables. All other arguments go to the command `epochmq`. Each of them replaces this shell, so that it
# is process 1 and gets its signals.
set -eu
# The walk is compiled when the image is built. numba needs its cache in a writable folder.
if [ -n "${NUMBA_CACHE_DIR:-}" ] && [ -d /opt/epochmq/numba ] && [ "${1:-}" != reader ]; then
    cp -R -p /opt/epochmq/numba "$NUMBA_CACHE_DIR"
fi
case "${1:-}" in
driver)
    shift
    if [ "${1:-}" != --job ]; then # of `spark-submit --deploy-mode cluster` and of the Spark operator
        exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    fi
    exec python3 -m epochmq_spark.kubernetes_driver "$@"
    ;;
reader)
    shift
    exec python3 -m epochmq_spark.volume_reader "$@"
    ;;
executor) ;;
*)
    exec epochmq "$@"
    ;;
esac
home=$(python3 -c 'import pyspark; print(*pyspark.__path__)')
# The driver numbers the options of the JVM: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
set --
number=0
while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
    set -- "$@" "$option"
    number=$((number + 1))
done
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
