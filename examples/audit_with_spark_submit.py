"""For `spark-submit`: audits the replicas of a group on your own Spark. See docs/audit.md."""

import sys

from epochmq_spark.spark_submit import main

sys.exit(main())
