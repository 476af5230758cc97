# SPDX-License-Identifier: Apache-2.0
# A Spack recipe: copy this folder to packages/esker of a repository of recipes, and let `git` name
# your copy of the sources.

from spack.package import *


class Esker(Package):
    """Namespaces, indexed directories and shared files that jobs keep on shared storage."""

    homepage = "https://example.org/esker"
    git = "https://example.org/esker.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("s3", default=True, description="Stores on S3")
    variant("mpi", default=False, description="Ranks over MPI")

    depends_on("rust@1.95:", type="build")
    depends_on("c", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("llvm+clang", when="+mpi", type="build")

    def install(self, spec, prefix):
        features = [name for name in ("s3", "mpi") if spec.satisfies("+" + name)]
        cargo = which("cargo")
        if "mpi" in features:
            env["MPICC"] = spec["mpi"].mpicc
        cargo("build", "--release", "--locked", "-p", "esker-cli", "--features", ",".join(features))
        which("scripts/install.sh")(prefix)
