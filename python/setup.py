"""Builds a wheel for any Python 3 of this platform: the package is plain Python with a native library beside it.

A source distribution has the library's C code, and builds it by a C compiler with the headers of libibverbs.
"""

import pathlib
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution
from wheel.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class LibraryBeside(build_py):
    def run(self):
        super().run()
        library = pathlib.Path(self.build_lib, "rackweave", "_native", "librackweave.so.0").resolve()
        if not library.exists():
            subprocess.run(["scripts/build-library.sh", str(library)], check=True)


class NativeDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": PlatformWheel, "build_py": LibraryBeside}, distclass=NativeDistribution)
