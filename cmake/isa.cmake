# SPDX-License-Identifier: Apache-2.0
# The only place with instruction-set flags. A source file named after an ISA gets that ISA's flags; every other file is
# built for the baseline (x86-64 without extensions). Each name is a set of features: see src/cpu/features.h.
set(QUERN_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(QUERN_ISA_FLAGS_avxvnni -mavx2 -mfma -mf16c -mavxvnni)
set(QUERN_ISA_FLAGS_avx512vnni -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    # g++ 12 warns about its own undefined-value intrinsics.
    -Wno-maybe-uninitialized -Wno-uninitialized)
set(QUERN_ISA_FLAGS_avx512bf16 ${QUERN_ISA_FLAGS_avx512vnni} -mavx512bf16)

# quern_set_isa_flags(files...): by file name x86_<isa>.cc or x86_<isa>_<what>.cc
function(quern_set_isa_flags)
  foreach(file ${ARGN})
    get_filename_component(stem ${file} NAME_WE)
    if(stem MATCHES "^x86_([a-z0-9]+)(_[a-z0-9_]+)?$")
      if(NOT DEFINED QUERN_ISA_FLAGS_${CMAKE_MATCH_1})
        message(FATAL_ERROR "unknown instruction set in file name ${file}")
      endif()
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS ${QUERN_ISA_FLAGS_${CMAKE_MATCH_1}})
      if(QUERN_SANITIZE)
        # Unrolled kernels with checks around every access take a quarter of an hour and 3 GB each to compile. They are
        # held against the reference, which is instrumented, bit for bit and behind guard pages.
        set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
      endif()
    endif()
  endforeach()
endfunction()
