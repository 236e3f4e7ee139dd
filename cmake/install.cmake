# SPDX-License-Identifier: Apache-2.0
# What programs that embed quern get: libquern.a with all objects and the headers of engine/ (quern::quern), libquern_c.so
# with the C interface and nothing else visible (quern::c), and the files by which find_package(quern) finds both.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# One archive instead of one for each folder and room; the objects are those of the folders.
get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
set(objects)
foreach(target ${targets})
  get_target_property(type ${target} TYPE)
  if(target MATCHES "^quern_" AND type STREQUAL STATIC_LIBRARY)
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endif()
endforeach()
add_library(quern_all STATIC ${objects})
set_target_properties(quern_all PROPERTIES OUTPUT_NAME quern EXPORT_NAME quern LINKER_LANGUAGE CXX)
target_compile_features(quern_all INTERFACE cxx_std_20)
target_include_directories(quern_all INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(quern_all PRIVATE ${quern_libraries} INTERFACE nlohmann_json::nlohmann_json)
install(TARGETS quern_all EXPORT quern_cpp)

add_library(quern_c SHARED ${PROJECT_SOURCE_DIR}/src/c/quern.cc)
set_target_properties(quern_c PROPERTIES EXPORT_NAME c VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_include_directories(quern_c PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                           PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(quern_c PRIVATE QUERN_VERSION="${PROJECT_VERSION}")
target_link_libraries(quern_c PRIVATE quern_engine)
set(quern_c_symbols ${PROJECT_SOURCE_DIR}/src/c/symbols.map)
target_link_options(quern_c PRIVATE -Wl,--version-script=${quern_c_symbols})
set_property(TARGET quern_c PROPERTY LINK_DEPENDS ${quern_c_symbols})
install(TARGETS quern_c EXPORT quern_c)
install(FILES ${PROJECT_SOURCE_DIR}/src/c/quern.h TYPE INCLUDE)

# The headers of programs, with what they include, as <quern/engine/session.h>. In the tree they include each other from
# src/; installed they must not meet another project's folder of the same name.
set(pending engine/session.h engine/chat.h engine/perplexity.h)
set(public_headers)
while(pending)
  list(POP_FRONT pending header)
  if(header IN_LIST public_headers)
    continue()
  endif()
  list(APPEND public_headers ${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${header})
  file(READ ${PROJECT_SOURCE_DIR}/src/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+" included "${text}")
  string(REPLACE "#include \"" "" included "${included}")
  list(APPEND pending ${included})
  string(REPLACE "#include \"" "#include \"quern/" text "${text}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/include/quern/${header} CONTENT "${text}" @ONLY)
endwhile()
install(DIRECTORY ${PROJECT_BINARY_DIR}/include/quern TYPE INCLUDE)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/quern-config.cmake.in ${PROJECT_BINARY_DIR}/quern-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quern-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quern-config.cmake ${PROJECT_BINARY_DIR}/quern-config-version.cmake
        DESTINATION ${package_dir})
foreach(component cpp c)
  install(EXPORT quern_${component} NAMESPACE quern:: FILE quern-${component}.cmake DESTINATION ${package_dir})
endforeach()
