"""Contact with the parts of Dask that its documentation does not promise.

Entry points: `names` gives private names of Dask, each looked up when it is first imported;
`process_patches`, `instance_patches` and `resource_patches` list every function of Dask that is
replaced; `patching` replaces one and puts it back; `features` lists what each server gets, and
`activation` installs all that; `installed` says which patches are in force; `operations` names the
added messages.

Threads: any thread may install; patches take effect for the whole process.

Locks: `activation` has one, so that two threads do not install the same patch.

Invariants: importing these modules replaces nothing. A patch is installed only if the digest of
each source that it relies upon is one that was read. A missing name raises `MissingName`, which
leaves out the feature that needs the name and nothing else. Only `features` imports other
packages, by name.
"""
