"""The resource model, the renderer from resources to pods, and the runtimes that run them."""
