# SPDX-License-Identifier: Apache-2.0
# Turns QUERN_SANITIZE into compiler and linker flags for everything.
if(QUERN_SANITIZE)
  add_compile_options(-fsanitize=${QUERN_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${QUERN_SANITIZE})
  if(QUERN_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
