"""Recipes in containers: one module for each library that needs more than ``build(resolve)``.

``chatstack.di.injectq`` and ``chatstack.di.dependency_injector``, by the extras of the same names. Any other
container needs nothing of ours: all that ``ChatStack.build`` and ``ChatStack.open`` ask for is a function from a type
to an instance.
"""
