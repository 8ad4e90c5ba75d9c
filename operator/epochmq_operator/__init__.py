"""The EpochMQ operator: the resource model, the renderer from resources to pods, and the runtimes that run
the pods."""
