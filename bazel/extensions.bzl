"""local_env for Bazel 7 and later; its own file, because Bazel 4 has no module_extension."""

load(":local_env.bzl", "local_env")

def _local_env_extension_impl(_ctx):
    local_env(name = "local_env")

local_env_extension = module_extension(_local_env_extension_impl)
