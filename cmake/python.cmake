# SPDX-License-Identifier: Apache-2.0
# The Python package in <build>/python/quern: the extension module and its __init__.py. nanobind comes from the
# interpreter given as Python_EXECUTABLE.
find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)
file(GLOB python_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/python/*.cc)
nanobind_add_module(quern_python NB_STATIC NOSTRIP ${python_sources})
target_link_libraries(quern_python PRIVATE quern_engine)
target_compile_definitions(quern_python PRIVATE QUERN_VERSION="${PROJECT_VERSION}")
# nanobind's own sources are not ours to keep clean.
if(TARGET nanobind-static)
  target_compile_options(nanobind-static PRIVATE -w)
endif()
# Its headers shadow names.
target_compile_options(quern_python PRIVATE -Wno-shadow)
# Other packages in the process bring their own copies of common libraries: nothing but the entry point is visible.
target_link_options(quern_python PRIVATE -Wl,--exclude-libs,ALL)
set(QUERN_PYTHON_DIR ${PROJECT_BINARY_DIR}/python/quern)
set_target_properties(quern_python PROPERTIES OUTPUT_NAME _quern LIBRARY_OUTPUT_DIRECTORY ${QUERN_PYTHON_DIR})
configure_file(${PROJECT_SOURCE_DIR}/src/python/__init__.py ${QUERN_PYTHON_DIR}/__init__.py COPYONLY)
file(TOUCH ${QUERN_PYTHON_DIR}/py.typed)
install(TARGETS quern_python LIBRARY DESTINATION quern COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${QUERN_PYTHON_DIR}/__init__.py ${QUERN_PYTHON_DIR}/py.typed
        DESTINATION quern COMPONENT python EXCLUDE_FROM_ALL)
# Types for editors and checkers come from the module itself, which must be loaded for it.
if(NOT QUERN_SANITIZE)
  set(stubs ${QUERN_PYTHON_DIR}/_quern/__init__.pyi ${QUERN_PYTHON_DIR}/_quern/ops.pyi)
  nanobind_add_stub(quern_stubs RECURSIVE MODULE quern._quern PYTHON_PATH ${PROJECT_BINARY_DIR}/python
                    OUTPUT_PATH ${QUERN_PYTHON_DIR} OUTPUT ${stubs} DEPENDS quern_python
                    PATTERN_FILE ${PROJECT_SOURCE_DIR}/src/python/stubs.pattern)
  install(FILES ${stubs} DESTINATION quern/_quern COMPONENT python EXCLUDE_FROM_ALL)
endif()
