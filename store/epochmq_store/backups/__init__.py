"""Takes backups of a replica's store, keeps them in a directory or an object storage, and restores stores
from them.
It reads the files of a store beside the broker that writes them, in a process of its own. It may use the
formats, the paths of the log and the state files.
It must not know controllers or Kubernetes: the caller makes the cut. No broker imports it."""
