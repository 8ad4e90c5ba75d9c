"""Declares the verbs with their arguments, one module for each family. `verbs` has what they do."""
